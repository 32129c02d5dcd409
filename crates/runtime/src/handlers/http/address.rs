//! Decides which addresses a push may reach (SEC-4).
//!
//! A name comes in, and the addresses to which it resolves go out, without those of this machine or of a private
//! network. This is decided while connecting, on the very addresses that are used: so a name that was public when the
//! config was read, and leads to a private address now, is refused too. The resolver never sees a literal address, so
//! the code that builds a client asks [`is_private`] first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// How long a name is looked up for a warning only.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Resolves names as the system does, and returns public addresses only.
pub(super) struct PublicOnly;

/// Why a name gives no address.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error("{0} resolves to private addresses only, and `allow_private` is not set")]
    Private(String),
    #[error("{0} does not resolve: {1}")]
    Unresolved(String, std::io::Error),
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str();
            let public: Vec<SocketAddr> = tokio::net::lookup_host((name, 0))
                .await
                .map_err(|error| AddressError::Unresolved(name.to_owned(), error))?
                .filter(|address| !is_private(address.ip()))
                .collect();
            if public.is_empty() {
                return Err(AddressError::Private(name.to_owned()).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Whether a name resolves, and to private addresses only. A lookup that takes too long counts as no.
pub(super) async fn is_private_name(name: &str) -> bool {
    let look = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((name, 0)));
    // A name that cannot be resolved now may lead anywhere later.
    let Ok(Ok(found)) = look.await else { return false };
    let mut found = found.peekable();
    found.peek().is_some() && found.all(|address| is_private(address.ip()))
}

/// True for every address that is no host of the public internet: loopback, private, link-local, shared, reserved and
/// multicast ranges, and the IPv6 forms that carry such an IPv4 address.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    matches!(a, 0 | 10 | 127 | 224..)
        || (a == 100 && (64..128).contains(&b))
        || (a == 169 && b == 254)
        || (a == 172 && (16..32).contains(&b))
        || (a == 192 && b == 168)
        || (a == 192 && b == 0 && matches!(c, 0 | 2))
        || (a == 198 && matches!(b, 18 | 19))
        || (a == 198 && b == 51 && c == 100)
        || (a == 203 && b == 0 && c == 113)
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    let tail = carried_v4(s[6], s[7]);
    match s {
        // Unspecified, loopback, IPv4-compatible and IPv4-mapped addresses.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] => address.to_bits() <= 1 || is_private_v4(tail),
        // NAT64: the well-known prefix carries any IPv4 address, the local-use one is private by definition.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_private_v4(tail),
        [0x64, 0xff9b, ..] => true,
        // 6to4 carries the address of its router.
        [0x2002, high, low, ..] => is_private_v4(carried_v4(high, low)),
        // Teredo hides an IPv4 address, and documentation addresses belong to no host.
        [0x2001, 0 | 0xdb8, ..] => true,
        // Global unicast is all of 2000::/3; everything else is local, reserved or multicast.
        [first, ..] => first & 0xe000 != 0x2000,
    }
}

fn carried_v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEC-4.
    #[test]
    fn private_addresses_are_told_from_public_ones_in_every_spelling() {
        let private = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001:0:1::",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ];
        for address in private {
            assert!(is_private(address.parse().expect("an address")), "{address}");
        }
        let public = [
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.3.1",
            "223.255.255.1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::",
            "2606:4700:4700::1111",
        ];
        for address in public {
            assert!(!is_private(address.parse().expect("an address")), "{address}");
        }
    }

    /// SEC-4.
    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_gives_no_address() {
        let resolved = PublicOnly.resolve("localhost".parse().expect("a name")).await;
        let error = resolved.err().expect("loopback is private").to_string();
        assert!(error.contains("localhost") && error.contains("allow_private"), "{error}");
    }

    /// SEC-4.
    #[tokio::test]
    async fn a_name_that_leads_inwards_is_told_from_one_that_leads_nowhere() {
        assert!(is_private_name("localhost").await);
        assert!(!is_private_name("1.1.1.1").await);
        assert!(!is_private_name("no-such-name.invalid").await);
    }
}
