"""What Kafka runs from and with: its jar files, ports, certificates and settings.

Comes in: dev/kafka.pom.xml and the options of dev/kafka. Goes out: files in a cache and in the cluster's folder.
Nothing here starts a broker.
"""

import base64
import fcntl
import hashlib
import os
import random
import secrets
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
# PLAIN is for kcat: librdkafka before 2.6.1, which Debian's kcat uses, gets SCRAM's nonce wrong, and Kafka checks it.
MECHANISMS = [*SCRAM, "PLAIN"]

# Small, and quick to start. No perf data: its files in the temporary folder outlive a kill -9.
JVM = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"]


class Failed(Exception):
    """Told to the user as it is, without a stack trace."""


def run(command, **options):
    """Runs to the end; a failure carries what the command said."""
    try:
        done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, **options)
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is missing: dev/tools installs it, or names what does") from error
    if done.returncode != 0:
        raise Failed(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def jars():
    """The folder of jar files. It outlives `make clean`."""
    pom = (HERE / "kafka.pom.xml").read_bytes()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "keylane" / f"kafka-{hashlib.sha256(pom).hexdigest()[:16]}"


def archive():
    """Kafka's classes as Java loaded them once: a broker then starts with half the work."""
    return jars() / "classes.jsa"


def fetch(make_archive):
    """Any number of processes may ask at once: one fetches, the others wait, and none sees half a file."""
    if archive().exists():
        return
    jars().parent.mkdir(parents=True, exist_ok=True)
    with open(jars().parent / "kafka.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        part = jars().with_suffix(".part")
        if not jars().is_dir():
            shutil.rmtree(part, ignore_errors=True)
            run(["mvn", "-B", "-q", "-C", "-f", str(HERE / "kafka.pom.xml"), "dependency:copy-dependencies",
                 "-DincludeScope=runtime", f"-DoutputDirectory={part}"])
            part.rename(jars())
        if not archive().exists():
            part.unlink(missing_ok=True)
            make_archive(part)
            part.rename(archive())


def version():
    """Kafka's, as fetched."""
    return next(jars().glob("kafka-clients-*.jar")).stem.removeprefix("kafka-clients-")


def java(main, *arguments, options=(), classes=None):
    """The command line that runs a class of Kafka's, with a folder of others behind them."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home, "bin", "java")) if home else "java"
    shared = [f"-XX:SharedArchiveFile={archive()}"] if archive().exists() else []
    return [binary, *JVM, *shared, *options, "-cp", f"{jars()}/*" + (f":{classes}" if classes else ""), main,
            *arguments]


class Ports:
    """Free ports, each kept from other clusters until this process ends.

    None is of the range that the system gives to outgoing connections: there the port of a stopped broker could be
    taken by any client, even by one that is trying to reach that broker and so ends up connected to itself.
    """

    def __init__(self):
        self.held = []

    def take(self):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        low, high = (10000, first) if first > 12000 else (2000, first)
        for _ in range(10000):
            port = random.randrange(low, high)
            mark = socket.socket(socket.AF_UNIX)
            try:
                mark.bind(f"\0keylane-port-{port}")  # an abstract name: gone with the process
                with socket.socket() as probe:
                    probe.bind((HOST, port))
            except OSError:
                mark.close()
                continue
            self.held.append(mark)
            return port
        raise Failed(f"no free port between {low} and {high}")


def policy(folder):
    """Compiles the rules of a managed cluster."""
    folder.mkdir()
    run(["javac", "-cp", f"{jars()}/*", "-d", str(folder), str(HERE / "ManagedPolicy.java")])


def certificates(folder):
    """A certificate authority and a server certificate of its own; Kafka reads key and certificate from one file."""
    folder.mkdir()
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    run([*new, "-subj", "/CN=Keylane test authority", "-keyout", "ca.key", "-out", "ca.pem"], cwd=folder)
    run([*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.crt", "-CA", "ca.pem",
         "-CAkey", "ca.key", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost",
         "-addext", "basicConstraints=critical,CA:false"], cwd=folder)
    both = (folder / "server.key").read_text() + (folder / "server.crt").read_text()
    (folder / "server.pem").write_text(both)


def users(given):
    """NAME:PASSWORD each; one of our own where none is given."""
    if not given:
        return [{"name": "keylane", "password": secrets.token_hex(8)}]
    pairs = [user.partition(":") for user in given]
    if any(not name or not password for name, _, password in pairs):
        raise Failed("--user takes NAME:PASSWORD")
    return [{"name": name, "password": password} for name, _, password in pairs]


def settings(broker, cluster, options, security):
    """The server's properties. Later ones win, so --set can change any."""
    count = len(cluster)
    copies = min(3, count)
    clients = "SASL_SSL" if security else "PLAINTEXT"
    listeners = {"CLIENTS": broker.port, "ADMIN": broker.admin_port}
    advertised = dict(listeners)
    if broker.proxied:
        listeners["PROXIED"] = broker.proxied["to"]
        advertised["PROXIED"] = broker.proxied["listen"]

    def urls(ports):
        return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())

    made = {
        "process.roles": "broker,controller",
        "node.id": broker.id,
        "controller.quorum.voters": ",".join(f"{b.id}@{HOST}:{b.controller_port}" for b in cluster),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "ADMIN",
        "listeners": urls({**listeners, "CONTROLLER": broker.controller_port}),
        "advertised.listeners": urls(advertised),
        "listener.security.protocol.map": f"CLIENTS:{clients},PROXIED:{clients},ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": broker.data,
        "default.replication.factor": copies,
        "min.insync.replicas": max(1, copies - 1),
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": max(1, copies - 1),
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": max(1, copies - 1),
        # Few, for a quick start and little memory.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.num.partitions": 4,
        "log.cleaner.dedupe.buffer.size": 16 << 20,
        # A topic that a test did not make is a mistake.
        "auto.create.topics.enable": "false",
        # Groups begin at once, and a killed broker is noticed in seconds.
        "group.initial.rebalance.delay.ms": 0,
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 6000,
    }
    if security:
        made.update({
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": broker.data.parent.parent / "tls" / "server.pem",
        })
        known = " ".join(f'user_{user["name"]}="{user["password"]}"' for user in security["users"])
        login = "org.apache.kafka.common.security"
        for name in ["clients", "proxied"]:
            for mechanism in SCRAM:
                made[f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"] = (
                    f"{login}.scram.ScramLoginModule required;")
            made[f"listener.name.{name}.plain.sasl.jaas.config"] = f"{login}.plain.PlainLoginModule required {known};"
    if options.jwks:
        made["sasl.enabled.mechanisms"] += ",OAUTHBEARER"
        login = "org.apache.kafka.common.security.oauthbearer"
        bearer = "listener.name.clients.oauthbearer.sasl"
        made[f"{bearer}.jaas.config"] = f"{login}.OAuthBearerLoginModule required;"
        made[f"{bearer}.server.callback.handler.class"] = f"{login}.OAuthBearerValidatorCallbackHandler"
        made[f"{bearer}.oauthbearer.jwks.endpoint.url"] = options.jwks
        made[f"{bearer}.oauthbearer.expected.audience"] = "kafka"
    if options.policy:
        made["create.topic.policy.class.name"] = made["alter.config.policy.class.name"] = "ManagedPolicy"
    if options.acls:
        # The admin listener has no log-in: whoever uses it is ANONYMOUS and may do everything.
        made["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        made["super.users"] = "User:ANONYMOUS"
    for given in options.set:
        to, colon, rest = given.partition(":")
        only = int(to) if colon and to.isdigit() else None
        name, equals, value = (rest if only else given).partition("=")
        if not equals:
            raise Failed("--set takes NAME=VALUE, or N:NAME=VALUE for broker N alone")
        if only in (None, broker.id):
            made[name] = value
    return "".join(f"{name}={value}\n" for name, value in made.items())


def format_storage(cluster, security):
    """Kafka's own tool formats the first broker's folder. The others get a copy under their own number, which is
    what the tool would write there too, and saves a start of Java each."""
    first = cluster[0]
    scram = []
    for user in security["users"] if security else []:
        for mechanism in SCRAM:
            scram += ["--add-scram", f"{mechanism}=[name={user['name']},password={user['password']}]"]
    run(java("kafka.tools.StorageTool", "format", "--cluster-id", short_uuid(), "--config", str(first.config), *scram,
             options=["-XX:TieredStopAtLevel=1"], classes=first.classes))
    for broker in cluster[1:]:
        shutil.copytree(first.data, broker.data, dirs_exist_ok=True)
        meta = (broker.data / "meta.properties").read_text().splitlines()
        own = {"node.id": str(broker.id), "directory.id": short_uuid()}
        lines = [f"{key}={own.get(key, value)}" for key, _, value in (line.partition("=") for line in meta)]
        (broker.data / "meta.properties").write_text("\n".join(lines) + "\n")


def short_uuid():
    """As Kafka writes them. One with a leading dash would read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
