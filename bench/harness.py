"""What bench/run and bench/compare share: load tools, CPU times, waits of notifications, result tables."""

import datetime
import json
import os
import re
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import namedtuple
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
TICK = 1 / os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))
# Load and origin on the first core, the process under test on the last one.
LOAD_CORE, TEST_CORE = {CORES[0]}, {CORES[-1]}

Load = namedtuple("Load", "requests rate p50 p99 failed statuses")


def fail(message, status=1):
    print(f"bench: {message}", file=sys.stderr)
    sys.exit(status)


def on(cores):
    """Returns a function for `preexec_fn` that binds a process to cores."""
    return lambda: os.sched_setaffinity(0, cores)


def wrk(url, folder, seconds, connections, cores=LOAD_CORE, **more):
    """Sends a load of loads.lua. `more` are its variables without the prefix."""
    environment = {**os.environ, "LOAD_FOLDER": str(folder), **{f"LOAD_{k.upper()}": str(v) for k, v in more.items()}}
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", HERE / "loads.lua", url]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=on(cores))
    if out.returncode:
        fail(f"wrk {url}: {out.stderr}{out.stdout}")
    told = json.loads(out.stdout.strip().splitlines()[-1])
    return Load(told["requests"], told["requests"] / told["seconds"], told["p50"], told["p99"], told["failed"], told["statuses"])


def h2load(url, token, seconds, folder):
    """Sends GETs over HTTP/2: 16 connections with 4 streams each."""
    log = folder / "h2load"
    log.unlink(missing_ok=True)
    command = ["h2load", "-t1", "-c16", "-m4", "-D", str(seconds), "--log-file", log, "-H", f"authorization: Bearer {token}", url]
    out = subprocess.run(command, capture_output=True, text=True, preexec_fn=on(LOAD_CORE))
    counts = re.search(r"requests: (\d+) total, .* (\d+) done, (\d+) succeeded, (\d+) failed", out.stdout)
    if out.returncode or not counts:
        fail(f"h2load {url}: {out.stderr}{out.stdout}")
    # Start, status, microseconds.
    times = sorted(int(line.split()[2]) / 1000 for line in log.read_text().splitlines())
    answered, failed = int(counts[3]), int(counts[4])
    return Load(answered, answered / seconds, quantile(times, 0.5), quantile(times, 0.99), failed, {})


def quantile(ordered, share):
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def read(path):
    try:
        return Path(path).read_text()
    except OSError:  # the process or thread has exited
        return ""


def cpu_seconds(pid):
    """Returns the CPU time of a process and its descendants: of living threads by the scheduler, of exited ones in ticks."""
    total, stat = 0, read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    threads = list(Path(f"/proc/{pid}/task").glob("*"))
    living = sum(int((read(task / "schedstat") or "0").split()[0]) for task in threads) / 1e9
    if stat:
        total += max(living, (int(stat[11]) + int(stat[12])) * TICK) + (int(stat[13]) + int(stat[14])) * TICK
    for task in threads:
        total += sum(cpu_seconds(child) for child in read(task / "children").split())
    return total


class ForeignCpu:
    """CPU time of other processes and of the host of a virtual machine, in percent of one core."""

    def __init__(self):
        self.began, self.before = time.monotonic(), self.now()

    def now(self):
        fields = [int(field) for field in read("/proc/stat").split("\n")[0].split()[1:]]
        # user, nice, system and steal.
        return sum(fields[at] for at in (0, 1, 2, 7)) * TICK - cpu_seconds(os.getpid())

    def percent(self):
        return max(0, 100 * (self.now() - self.before) / (time.monotonic() - self.began))


def ask(method, url, body=None, token=None):
    """Returns the parsed response to a request with a JSON body; raises for a status of 400 and above."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as response:
        return json.loads(response.read() or b"null")


def notification(priority):
    return {"channel": "email", "recipient": {"email": "load@example.com"}, "template": "welcome",
            "variables": {"name": "Load"}, "priority": priority}


def waits(base, token, seconds, priority="CRITICAL", until="ATTEMPTED"):
    """Sends 20 notifications a second, without waiting for responses. Returns the milliseconds between their acceptance
    and an event, by default the call of the provider, by the clock of the service, and how many have no such event."""
    ids, threads, due = [], [], time.monotonic()

    def send():
        try:
            ids.append(ask("POST", f"{base}/notifications", notification(priority), token)["notificationId"])
        except (urllib.error.URLError, TimeoutError):
            pass

    for _ in range(20 * seconds):
        threads.append(threading.Thread(target=send))
        threads[-1].start()
        due += 0.05
        time.sleep(max(0, due - time.monotonic()))
    for thread in threads:
        thread.join()
    waits, deadline = [], time.monotonic() + 30
    while ids and time.monotonic() < deadline:
        times = {}
        for event in ask("GET", f"{base}/notifications/{ids[-1]}", token=token)["events"]:
            times.setdefault(event["type"], datetime.datetime.fromisoformat(event["at"].replace("Z", "+00:00")))
        if until in times:
            waits.append((times[until] - times["QUEUED"]).total_seconds() * 1000)
            ids.pop()
        else:
            time.sleep(0.1)
    return sorted(waits), 20 * seconds - len(waits)


class SlowMail(socketserver.StreamRequestHandler):
    """A mail server that takes 0.3 s for a message."""

    messages, lock = 0, threading.Lock()

    @staticmethod
    def start(port):
        socketserver.ThreadingTCPServer.allow_reuse_address = True
        socketserver.ThreadingTCPServer.daemon_threads = True
        server = socketserver.ThreadingTCPServer(("127.0.0.1", port), SlowMail)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def handle(self):
        self.wfile.write(b"220 bench\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                while self.rfile.readline() not in (b".\r\n", b""):
                    pass
                time.sleep(0.3)
                with SlowMail.lock:
                    SlowMail.messages += 1
            self.wfile.write(b"250 ok\r\n")


def spread(values):
    """Returns the median, with minimum and maximum if there are several values."""
    def short(value):
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

    values = [value for value in values if value is not None]
    if not values:
        return ""
    middle = short(median(values))
    return middle if len(values) == 1 else f"{middle} ({short(min(values))}–{short(max(values))})"


def first_line(*command):
    try:
        out = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return ((out.stdout + out.stderr).strip().splitlines() or ["unknown"])[0]


def machine():
    model = re.search(r"model name\s*: (.*)", read("/proc/cpuinfo"))
    memory = int(re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))[1]) / 2**20
    changed = "" if first_line("git", "status", "--porcelain", "-uno") == "unknown" else " with changes"
    return (f"Commit {first_line('git', 'rev-parse', '--short', 'HEAD')}{changed}; {len(CORES)} cores, "
            f"{model[1] if model else 'unknown'}; {memory:.0f} GiB; Linux {os.uname().release}")


def report(name, notes, columns, rows, write):
    """Prints a table. With `write` it becomes bench/results/DATE-NAME.md, in place of an older one."""
    today = datetime.date.today().isoformat()
    lines = [f"# bench/{name}, {today}", "", *[f"{note}.  " for note in notes], ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    text = "\n".join(lines) + "\n"
    print("\n" + text)
    if write:
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        for older in folder.glob(f"*-{name}.md"):
            older.unlink()
        file = folder / f"{today}-{name}.md"
        file.write_text(text)
        print(f"written to {file}")
