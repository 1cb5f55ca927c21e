"""Driver of bench/compare, which installs, builds and starts what it needs."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import TEST_CORE, cpu_seconds, fail, spread  # noqa: E402

ACTOR = "/actors/7d8ca528-4931-4254-9273-ea5ee853f271"
DOCUMENT = "/documents/41"
LARGE = "/documents/large"
LARGE_BYTES = 1 << 20
UPLOAD_BYTES = 64 << 10
TOKENS = 4000
RELOADED_ROUTES = 4000
LOW_WAITING = 100_000
# The pools of peers/tokens.mjs, whose issuers are in the files.
POOLS = {"IDP_ACTOR_POOL_ID": "us-west-2_Actor0001", "IDP_ACTOR_CLIENT_ID": "benchclient",
         "IDP_SERVICE_POOL_ID": "us-west-2_Service01", "IDP_SERVICE_CLIENT_ID": "serviceclient"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read().decode()


class Program:
    """A process under test, or the origin, with free ports and a configuration from bench/peers."""

    running = []

    def __init__(self, name, run, command, sources, cores=TEST_CORE, more="", **names):
        self.name, self.port, self.tls, admin = name, free_port(), free_port(), free_port()
        self.base, self.secure, self.admin = f"http://127.0.0.1:{self.port}", f"https://127.0.0.1:{self.tls}", f"http://127.0.0.1:{admin}"
        known = {"folder": run.work, "port": self.port, "address": f"127.0.0.1:{self.port}", "tls": f"127.0.0.1:{self.tls}",
                 "tlsport": self.tls, "admin": f"127.0.0.1:{admin}", "root": harness.HERE.parent}
        if name != "origin":
            known.update(origin=f"127.0.0.1:{run.origin.port}", originport=run.origin.port, issuer=run.issuer)
        known.update(names)
        for source in sources:
            text = (harness.HERE / "peers" / source).read_text()
            # Files that others name keep their names.
            self.file = run.work / (source if source == "traefik-routes.yaml" else f"{self.port}-{source}")
            self.file.write_text(re.sub(r"@(\w+)@", lambda found: str(known.get(found[1], found[0])), text) + more)
        command = [str(part).replace("FILE", str(self.file)) for part in command]
        self.log = open(run.work / f"{self.port}.log", "w")
        self.process = subprocess.Popen(command, cwd=run.work, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, **POOLS}, preexec_fn=harness.on(cores))
        Program.running.append(self)
        self.await_ready(self.admin + "/readyz" if name.startswith("Postern") else self.base + ACTOR)

    def await_ready(self, url):
        deadline = time.monotonic() + 30
        while True:
            try:
                return get(url)
            except urllib.error.HTTPError as error:
                if error.code == 401:  # it verifies tokens
                    return None
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                fail(f"{self.name} does not start: {harness.read(self.log.name)[-800:]}")
            time.sleep(0.05)

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def stop(self):
        Program.running.remove(self)
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Run:
    """Options, folders, tokens, the origin and the rows of one run."""

    def __init__(self, options):
        self.options, self.work = options, Path(options.work)
        self.seconds, self.rounds, self.rows = options.seconds, options.rounds, []
        self.tools, self.programs = Path(options.tools), Path(options.programs).resolve()
        self.current, self.python = self.tools / "current", self.tools / "python" / "bin"
        self.origin = Program("origin", self, [self.current / "nginx", "-c", "FILE"], ["origin.conf"], harness.LOAD_CORE)
        self.issuer = f"{self.origin.base}/pool"
        subprocess.run(["node", harness.HERE / "peers" / "tokens.mjs", self.work, self.issuer, str(TOKENS)], check=True)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", "server.key", "-out", "server.pem"], cwd=self.work, check=True, capture_output=True)
        (self.work / "server-all.pem").write_text((self.work / "server.pem").read_text() + (self.work / "server.key").read_text())
        (self.work / "upload").write_bytes(os.urandom(UPLOAD_BYTES))
        (self.work / "large").write_bytes(os.urandom(LARGE_BYTES))
        self.tokens = (self.work / "access-tokens").read_text().split()
        self.service_token = (self.work / "service-token").read_text()
        for name, tokens in (("one", self.tokens[:1]), ("many", self.tokens), ("service", [self.service_token])):
            (self.work / name).mkdir()
            (self.work / name / "tokens").write_text("\n".join(tokens) + "\n")
        (self.work / "service" / "bodies").write_text(json.dumps(harness.notification("LOW")) + "\n")

    def gateway(self, routes=100):
        more = "".join(f'\n[[route]]\npath = "/collection-{at}/{{id}}/part-{at}"\nmethods = ["GET", "PUT"]\n'
                       f'upstream = "origin"\npolicy = {{ users = "any" }}\n' for at in range(2, routes))
        return Program("Postern, everything on", self, [self.programs / "postern-proxy", "--config", "FILE"], ["postern.toml"], more=more)

    def say(self, what):
        print(f"bench: {what}", file=sys.stderr, flush=True)

    def row(self, load, program, rates, cpu=(), p99=(), remark=""):
        """Adds a row. CPU times are in seconds for each request."""
        self.rows.append([load, program, spread(rates), spread([1e6 * each for each in cpu]), spread(p99), remark])


def gateways(run):
    """The loads of a gateway, one load after the other, with all programs in turn."""
    programs = [
        Program("nginx, no verification", run, [run.current / "nginx", "-c", "FILE"], ["nginx.conf"]),
        Program("HAProxy, jwt_verify", run, [run.current / "haproxy", "-f", "FILE"], ["haproxy.cfg"]),
        Program("Envoy, jwt_authn", run, [run.python / "envoy", "-c", "FILE", "--concurrency", "1", "-l", "error",
                                          "--disable-hot-restart"], ["envoy.yaml"]),
        Program("Traefik, no verification", run, [run.python / "traefik", "--configfile=FILE"], ["traefik-routes.yaml", "traefik.yaml"]),
        Program("Caddy, no verification", run, [run.python / "caddy", "run", "--adapter", "caddyfile", "--config", "FILE"], ["Caddyfile"]),
        run.gateway(),
    ]
    one, many = run.work / "one", run.work / "many"
    loads = {
        "reads": lambda p, s: harness.wrk(p.base + ACTOR, one, s, 64),
        "reads, TLS 1.3 and HTTP/2": lambda p, s: harness.h2load(p.secure + ACTOR, run.tokens[0], s, run.work),
        "reads, no token in a cache": lambda p, s: harness.wrk(p.base + ACTOR, many, s, 64),
        "uploads of 64 KiB": lambda p, s: harness.wrk(p.base + DOCUMENT, one, s, 64, method="POST", body=run.work / "upload"),
        "downloads of 1 MiB, TLS 1.3 and HTTP/2": lambda p, s: harness.h2load(p.secure + LARGE, run.tokens[0], s, run.work),
    }
    for load, send in loads.items():
        seen = {program: [] for program in programs}
        for at in range(run.rounds):
            run.say(f"{load}: round {at + 1} of {run.rounds}")
            for program in programs:
                if at == 0:
                    send(program, 1)
                before = program.cpu()
                told = send(program, run.seconds)
                if told.failed or not told.requests:
                    fail(f"{load}, {program.name}: {told.failed} of {told.requests} failed")
                seen[program].append((told.rate, (program.cpu() - before) / told.requests, told.p99))
        limit = [cpu for _, cpu, _ in seen[programs[0]]]
        for program, rounds in seen.items():
            rates, cpu, p99 = zip(*rounds)
            run.row(load, program.name, rates, cpu, p99, f"{harness.median(cpu) / harness.median(limit):.2f} × nginx")
    for program in programs:
        program.stop()


def reload(run):
    """Reads while a file with thousands of routes is checked and loaded once a second."""
    gateway, seen = run.gateway(RELOADED_ROUTES), {"": [], f", {RELOADED_ROUTES} routes reloaded each second": []}
    for at in range(run.rounds):
        run.say(f"reload: round {at + 1} of {run.rounds}")
        for what in seen:
            stop = threading.Event()

            def operator():
                while not stop.wait(1):
                    gateway.process.send_signal(signal.SIGHUP)

            thread = threading.Thread(target=operator)
            if what:
                thread.start()
            told = harness.wrk(gateway.base + ACTOR, run.work / "one", run.seconds, 8)
            stop.set()
            if what:
                thread.join()
            if told.failed:
                fail(f"reload: {told.failed} failed")
            seen[what].append(told)
    for what, told in seen.items():
        run.row(f"reads, 8 connections{what}", gateway.name, [each.rate for each in told], p99=[each.p99 for each in told])
    gateway.stop()


class Postgres:
    """The server that bench/compare started."""

    def __init__(self, options):
        self.url, self.pid = options.database, options.postgres

    def sql(self, text, database="postgres"):
        subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", self.at(database), "-c", text], check=True, stdout=subprocess.DEVNULL)

    def at(self, database):
        return self.url.rpartition("/")[0] + "/" + database

    def fresh(self, database):
        self.sql(f"DROP DATABASE IF EXISTS {database}")
        self.sql(f"CREATE DATABASE {database}")
        return self.at(database)

    def pgbench(self, script, *how):
        command = ["pgbench", "-n", "-M", "prepared", "-j1", *how, "-f", harness.HERE / "peers" / script, self.at("bench_sql")]
        out = subprocess.run(command, capture_output=True, text=True)
        rate = re.search(r"tps = ([\d.]+)", out.stdout)
        return float(rate[1]) if rate else fail(f"pgbench: {out.stderr}")


def notify(run, url, rate=""):
    program = [run.programs / "postern-notify", "--config", "FILE"]
    return Program("Postern", run, program, ["notify.toml"], set(harness.CORES), database=url, rate=rate)


def sent(service):
    found = re.findall(r'^postern_notify_attempts_total\{.*outcome="sent".*\} ([\d.]+)$', get(service.admin + "/metrics"), re.M)
    return sum(float(value) for value in found)


def burst(run, service, seconds):
    told = harness.wrk(service.base + "/notifications", run.work / "service", seconds, 128, set(harness.CORES), method="POST")
    if told.failed:
        fail(f"notifications: {told.failed} of {told.requests} failed")
    return told


def queue(run):
    """Acceptance and delivery beside a queue in SQL and graphile-worker, over the same PostgreSQL."""
    postgres, seen = Postgres(run.options), {}

    def add(load, program, rate, cpu=None, p99=None):
        row = seen.setdefault((load, program), ([], [], []))
        for values, value in zip(row, (rate, cpu, p99)):
            if value is not None:
                values.append(value)

    def worker(what, url):
        out = subprocess.run(["node", "graphile-worker.mjs", what, url, str(run.seconds)], cwd=run.tools, capture_output=True, text=True)
        if out.returncode:
            fail(f"graphile-worker: {out.stderr}")
        told = json.loads(out.stdout.strip().splitlines()[-1])
        return told["count"] / told["seconds"]

    for at in range(run.rounds):
        run.say(f"queue: round {at + 1} of {run.rounds}")
        postgres.fresh("bench_sql")
        subprocess.run(["psql", "-qX", postgres.at("bench_sql"), "-f", harness.HERE / "peers" / "queue.sql"], check=True, capture_output=True)
        add("accept", "pgbench, one INSERT each", postgres.pgbench("enqueue.sql", "-c32", f"-T{run.seconds}"))
        postgres.sql("TRUNCATE job", "bench_sql")
        postgres.sql("INSERT INTO job (priority, payload) SELECT 2, '{}' FROM generate_series(1, 200000)", "bench_sql")
        postgres.sql("VACUUM ANALYZE job", "bench_sql")
        add("deliver", "pgbench, SKIP LOCKED, 100 each", 100 * postgres.pgbench("claim.sql", "-c4", "-t500"))
        url = postgres.fresh("bench_graphile")
        add("accept", "graphile-worker, addJob", worker("add", url))
        add("deliver", "graphile-worker, no-op tasks", worker("run", url))
        url = postgres.fresh("bench_notify")
        service = notify(run, url, "rate = 1")
        burst(run, service, 1)
        before = service.cpu() + cpu_seconds(postgres.pid)
        told = burst(run, service, run.seconds)
        add("accept", "Postern, durable 201", told.rate, (service.cpu() + cpu_seconds(postgres.pid) - before) / told.requests, told.p99)
        service.stop()
        postgres.sql("VACUUM ANALYZE", "bench_notify")
        service = notify(run, url)
        began, before, first = time.monotonic(), service.cpu() + cpu_seconds(postgres.pid), sent(service)
        while time.monotonic() < began + run.seconds and sent(service) < told.requests:
            time.sleep(0.1)
        count, took = sent(service) - first, time.monotonic() - began
        add("deliver", "Postern, null provider", count / took, (service.cpu() + cpu_seconds(postgres.pid) - before) / max(count, 1))
        service.stop()
        service = notify(run, postgres.fresh("bench_notify"))
        first, began = sent(service), time.monotonic()
        told = burst(run, service, run.seconds)
        add("accept and deliver at once", "Postern, accepted", told.rate, None, told.p99)
        add("accept and deliver at once", "Postern, delivered", (sent(service) - first) / (time.monotonic() - began))
        service.stop()
    for (load, program), values in seen.items():
        run.row(load, program, *values)
    critical(run, postgres)


def critical(run, postgres):
    """CRITICAL while 100,000 LOW wait for a provider that takes 1,000 a second."""
    run.say(f"CRITICAL behind {LOW_WAITING:,} LOW")
    service = notify(run, postgres.fresh("bench_notify"), "rate = 1000")
    batch = {"notifications": [harness.notification("LOW")] * 1000}
    for _ in range(LOW_WAITING // 1000 + 5 * run.seconds):
        harness.ask("POST", service.base + "/notification-batches", batch, run.service_token)
    waits, missing = harness.waits(service.base, run.service_token, 3 * run.seconds)
    remark = f"p50 {harness.quantile(waits, 0.5):.1f} ms, {missing} not sent"
    run.row(f"CRITICAL behind {LOW_WAITING:,} LOW", "Postern, acceptance to provider", [20], p99=[harness.quantile(waits, 0.99)], remark=remark)
    service.stop()


def versions(run):
    lines = [harness.first_line(run.current / "nginx", "-v"), harness.first_line(run.current / "haproxy", "-v").split(" - ")[0],
             "Envoy " + re.search(r"/([\d.]+)/", harness.first_line(run.python / "envoy", "--version"))[1],
             *(run.tools / "python" / "requirements").read_text().replace("-bin==", " ").splitlines()[1:],
             f"graphile-worker {json.loads((run.tools / 'package.json').read_text())['dependencies']['graphile-worker']}",
             harness.first_line("postgres", "--version")]
    return "; ".join(lines)


PARTS = {"gateway": gateways, "reload": reload, "queue": queue}


def main():
    parser = argparse.ArgumentParser(prog="bench/compare", description="Postern beside its peers, see bench/README.md.")
    parser.add_argument("--seconds", type=int, default=6, help="of each load [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="one part; may be repeated")
    parser.add_argument("--write", action="store_true", help="write the table to bench/results/")
    for name in ("tools", "work", "database", "programs", "profile"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--postgres", type=int, help=argparse.SUPPRESS)
    os.environ["PGOPTIONS"] = "-c client_min_messages=warning"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    foreign, run = harness.ForeignCpu(), Run(parser.parse_args())
    try:
        for name in run.options.only or PARTS:
            PARTS[name](run)
    finally:
        for program in list(Program.running):
            program.stop()
    notes = [harness.machine(), versions(run), f"Profile {run.options.profile}; {run.rounds} rounds of {run.seconds} s; "
             "median (minimum to maximum); CPU of the process, in the queue with PostgreSQL's",
             f"Other processes and the host used {foreign.percent():.0f} % of a core"]
    columns = ["load", "program", "per second", "CPU each, µs", "p99, ms", "CPU beside nginx; remark"]
    harness.report("compare", notes, columns, run.rows, run.options.write)


main()
