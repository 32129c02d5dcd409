"""The two requests of Kafka's protocol that tell whether a broker is ready.

Comes in: a port on loopback. Goes out: who is in the cluster and which partitions lack a replica, or None while the
broker does not answer.
"""

import socket
import ssl
import struct

HOST = "127.0.0.1"
API_VERSIONS, METADATA = 18, 3


class Reader:
    """Reads what Kafka wrote, front to back."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        length = self.number(">h")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def list(self, read):
        return [read() for _ in range(self.number(">i"))]


def exchange(stream, api, version, body):
    """One request, its answer without the header."""
    name = b"keylane-dev"
    request = struct.pack(">hhih", api, version, 1, len(name)) + name + body
    stream.sendall(struct.pack(">i", len(request)) + request)
    (length,) = struct.unpack(">i", exactly(stream, 4))
    return exactly(stream, length)[4:]


def exactly(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise ConnectionError("closed in the middle of an answer")
        data += more
    return data


def connected(port):
    stream = socket.create_connection((HOST, port), timeout=5)
    stream.settimeout(5)
    return stream


def answers(port, authority=None):
    """Whether a broker answers on this listener, through TLS if an authority's certificate is given. It answers this
    one request also before a log-in."""
    try:
        with connected(port) as plain:
            if authority is None:
                return len(exchange(plain, API_VERSIONS, 0, b"")) > 2
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(plain, server_hostname=HOST) as stream:
                return len(exchange(stream, API_VERSIONS, 0, b"")) > 2
    except (OSError, struct.error):
        return False


def cluster(port):
    """(broker ids, partitions that lack a replica) as this broker sees it; None if it does not answer."""
    try:
        with connected(port) as stream:
            reader = Reader(exchange(stream, METADATA, 1, struct.pack(">i", -1)))
    except (OSError, struct.error):
        return None

    def broker():
        number = reader.number(">i")
        reader.text(), reader.number(">i"), reader.text()
        return number

    def partition(topic):
        reader.number(">h")
        number = reader.number(">i")
        leader = reader.number(">i")
        replicas = reader.list(lambda: reader.number(">i"))
        in_sync = reader.list(lambda: reader.number(">i"))
        return None if leader >= 0 and set(in_sync) == set(replicas) else f"{topic}-{number}"

    def topic():
        reader.number(">h")
        name = reader.text()
        reader.number(">b")
        return reader.list(lambda: partition(name))

    ids = set(reader.list(broker))
    reader.number(">i")
    lacking = [partition for partitions in reader.list(topic) for partition in partitions if partition]
    return ids, lacking
