//! The file under test takes its atomics from loom here, and only here.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
