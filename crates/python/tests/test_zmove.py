"""Tests with a real runner: ``ZMOVE=path/to/zmove python3 -m unittest discover -s tests``."""

import asyncio
import json
import os
import pickle
import re
import runpy
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from pathlib import Path
from typing import Awaitable, Callable, List, Optional

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

import zmove  # noqa: E402
from zmove import Client  # noqa: E402

ZMOVE = os.environ.get("ZMOVE") or shutil.which("zmove") or ""
PATIENCE = 60.0


def options_of(description: dict) -> str:
    """Generates the module with the options from the description of the API."""
    fields = description["components"]["schemas"]["Submission"]["properties"]
    lines = [
        '"""The options of a transfer and of a job. A test generates this file from the description of the API."""',
        "",
        "from typing import Iterable, Literal, TypedDict",
        "",
        "",
        "class Options(TypedDict, total=False):",
        '    """The options of ``zmove submit``, with ``_`` instead of ``-``."""',
        "",
    ]
    files = []
    for name, field in sorted(fields.items()):
        if name in ("sources", "target", "after"):
            continue
        one = field.get("items", field)
        words = ", ".join(f'"{word}"' for word in one.get("enum", []))
        kind = f"Literal[{words}]" if words else {"boolean": "bool", "integer": "int", "string": "str"}[one["type"]]
        broken = "\n        {}\n    " if len(kind) > 80 else "{}"
        lines.append(f"    {name}: {kind if one is field else f'Iterable[{broken.format(kind)}]'}")
        files += [name] if one.get("format") == "file" else []
    names = ", ".join(f'"{name}"' for name in files)
    lines += ["", "", "#: Options with a path of this host.", f"FILES = frozenset([{names}])", ""]
    return "\n".join(lines)


class Runner:
    """A runner with a separate directory that serves its API."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.directory = Path(tempfile.mkdtemp())
        self.environment = dict(os.environ, ZMOVE_HOME=str(self.directory / "home"))
        self.environment.pop("ZMOVE_JOBS", None)
        self.jobs = self.directory / "home/jobs"
        self.address = ""
        self.start()

    def start(self) -> None:
        # A restarted runner keeps its address.
        words = [ZMOVE, "runner", "--http", self.address.replace("http://", "") or "127.0.0.1:0", *self.options]
        self.process = subprocess.Popen(words, env=self.environment, stdout=subprocess.PIPE, text=True)
        while "the page is at " not in (line := self.process.stdout.readline()):
            assert line, "the runner has ended"
        self.address = "http://" + re.search("[0-9.]+:[0-9]+", line)[0]
        self.reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.reader.start()
        self.client = Client(socket=self.jobs / "api.sock", timeout=PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()

    def stop(self) -> None:
        for job in self.client.jobs(["running", "queued", "waiting", "paused"]):
            job.cancel()
            job.wait(PATIENCE)
        self.kill()
        shutil.rmtree(self.directory)

    def source(self, name: str = "source", bytes: int = 100_000) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        (path / "f").write_bytes(os.urandom(bytes))
        return path

    def target(self, name: str = "target") -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path


@unittest.skipUnless(ZMOVE, "ZMOVE names no program")
class RealRunner(unittest.TestCase):
    def setUp(self) -> None:
        self.runner = Runner()
        self.client = self.runner.client
        self.addCleanup(lambda: self.runner.stop())

    def submit(self, **terms: object) -> zmove.Job:
        return self.client.submit(f"{self.runner.source()}/", self.runner.target(), **terms)

    def later(self, **terms: object) -> zmove.Job:
        return self.submit(at="2100-01-01 00:00", **terms)

    def test_a_job_is_submitted_and_awaited(self) -> None:
        job = self.submit(label="run7", submission_id="one")
        self.assertEqual((job.label, job.ended), ("run7", False))
        job.wait(PATIENCE).raise_for_status()
        self.assertEqual((job.state, job.files, job.bytes), ("done", 1, 100_000))
        self.assertEqual((self.runner.target() / "f").stat().st_size, 100_000)
        self.assertEqual([event.event for event in job.events()], ["submitted", "running", "done"])
        self.assertIsInstance(job.log(), str)
        self.assertEqual(self.client.status().jobs, {"done": 1})
        self.assertEqual(pickle.loads(pickle.dumps(job.as_dict()))["state"], "done")

    def test_options_are_those_of_the_description(self) -> None:
        written = HERE.parent / "src/zmove/_options.py"
        text = options_of(self.client._wire.ask("GET", "/api/v1/openapi.json"))
        if os.environ.get("WRITE_OPTIONS"):
            written.write_text(text)
        self.assertEqual(written.read_text(), text, "write it anew: WRITE_OPTIONS=1")

    def test_all_options_are_taken(self) -> None:
        source, target = self.runner.source(), self.runner.target()
        (source / "g").write_bytes(b"g")
        files = self.runner.directory / "list"
        files.write_text("g\n")
        job = self.client.submit(f"{source}/", target, archive=True, files_from=os.path.relpath(files), streams=2)
        job.wait(PATIENCE).raise_for_status()
        self.assertEqual(os.listdir(target), ["g"])
        plan = self.client.plan(f"{source}/", target, exclude=iter(["g"]), priority=3)
        self.assertEqual((plan.files, plan.sample[0].path), (1, "f"))
        with self.assertRaisesRegex(zmove.ApiError, "unknown field `ssh_command`"):
            self.submit(ssh_command="sh")

    def test_the_same_submission_is_one_job(self) -> None:
        source = self.runner.source()
        first, again = (self.client.submit(source, self.runner.target(), submission_id="s") for _ in range(2))
        self.assertEqual(first.id, again.id)
        first.wait(PATIENCE)
        # Even after the job has ended and the source has changed, the id names the same submission.
        self.runner.source()
        again = self.client.submit(source, self.runner.target(), submission_id="s")
        self.assertEqual((again.id, again.state), (first.id, "done"))
        with self.assertRaises(zmove.ApiError) as refused:
            self.client.submit(source, self.runner.target("other"), submission_id="s")
        self.assertIn("which has other arguments", str(refused.exception))

    def test_a_job_that_does_not_end_well_is_an_error(self) -> None:
        source = self.runner.source()
        in_the_way = self.runner.directory / "in-the-way"
        in_the_way.write_text("a file")
        failed = self.client.submit(source, in_the_way / "target").wait(PATIENCE)
        with self.assertRaises(zmove.JobFailed) as error:
            failed.raise_for_status()
        self.assertIn(f"job {failed.id} ({source.name}) has failed: ", str(error.exception))
        cancelled = self.later().cancel()
        with self.assertRaises(zmove.JobCancelled):
            cancelled.raise_for_status()
        self.assertEqual([job.id for job in self.client.jobs(["cancelled"])], [cancelled.id])
        self.assertEqual([job.id for job in self.client.jobs()], [cancelled.id, failed.id])

    def test_a_job_is_held_goes_on_and_is_done_again(self) -> None:
        job = self.later()
        self.assertEqual(job.pause().state, "paused")
        self.assertEqual(job.resume().state, "waiting")
        after = self.submit(after=[job])
        with self.assertRaises(zmove.ApiError) as refused:
            job.rerun()
        self.assertEqual(refused.exception.status, 409)
        job.cancel()
        self.assertEqual(after.wait(PATIENCE).state, "failed")
        again = job.rerun()
        self.assertEqual((again.previous, again.wait(PATIENCE).state), (job.id, "done"))

    def test_waiting_ends_in_time(self) -> None:
        with self.assertRaises(zmove.WaitTimeout):
            self.later().wait(0.3)
        with self.assertRaises(TimeoutError):
            asyncio.run(self.client.wait_for(self.later(), 0.3))

    def test_what_makes_no_sense_is_refused_with_its_reason(self) -> None:
        with self.assertRaises(zmove.ApiError) as refused:
            self.submit(limit="fast")
        self.assertEqual((refused.exception.status, refused.exception.exit), (422, 1))
        self.assertIn("fast", str(refused.exception))
        with self.assertRaises(zmove.ApiError) as refused:
            self.submit(notify="nobody")
        self.assertIn("has neither a hook nor a webhook", str(refused.exception))
        with self.assertRaises(zmove.ApiError) as refused:
            self.client.job(99)
        self.assertEqual((refused.exception.status, str(refused.exception)[:20]), (404, "there is no job 99: "))

    def test_a_plan_does_nothing(self) -> None:
        plan = self.client.plan(f"{self.runner.source()}/", self.runner.target(), exclude=["*.tmp"])
        self.assertEqual((plan.files, plan.bytes, plan.sample[0].event), (1, 100_000, "added"))
        self.assertEqual(list(self.runner.target().iterdir()), [])

    def test_over_the_loopback_a_token_is_needed(self) -> None:
        token = (self.runner.jobs / "token").read_text().strip()
        self.assertEqual(Client(self.runner.address, token).status().pid, self.runner.process.pid)
        with self.assertRaises(zmove.ApiError) as refused:
            Client(self.runner.address, "wrong").status()
        self.assertEqual(refused.exception.status, 401)

    def test_a_new_runner_has_a_new_token_which_is_read_from_the_file(self) -> None:
        old = (self.runner.jobs / "token").read_text().strip()
        with unittest.mock.patch.dict(os.environ, ZMOVE_JOBS=str(self.runner.jobs)):
            client, streaming = Client(self.runner.address), Client(self.runner.address)
        self.assertEqual(client.status().pid, self.runner.process.pid)
        job = client.submit(self.runner.source(), self.runner.target(), at="2100-01-01 00:00")
        self.runner.kill()
        self.runner.start()
        self.assertEqual(client.status().pid, self.runner.process.pid)
        self.assertEqual(job.cancel().state, "cancelled")
        self.assertEqual(asyncio.run(streaming.wait_for(job, PATIENCE)).state, "cancelled")
        with self.assertRaises(zmove.ApiError) as refused:
            Client(self.runner.address, old).status()
        self.assertEqual(refused.exception.status, 401)

    def test_a_wait_outlives_the_runner(self) -> None:
        job = self.later()
        self.runner.kill()
        with self.assertRaises(zmove.NotRunning):
            self.client.status()
        ended = []
        waiter = threading.Thread(target=lambda: ended.append(job.wait(PATIENCE).state))
        waiter.start()
        self.runner.start()
        self.client.job(job.id).cancel()
        waiter.join()
        self.assertEqual(ended, ["cancelled"])

    def test_events_come_once_each_across_restarts(self) -> None:
        async def listen() -> list:
            seen, notices, has_restarted = [], self.client.events(), False
            async for notice in notices:
                if notice.kind == "hello" and not seen:
                    first = self.later()
                if notice.event:
                    seen.append((notice.number, notice.event.event))
                if notice.event and notice.event.job == first.id and notice.event.event == "submitted":
                    first.cancel()
                if len(seen) == 2 and not has_restarted:
                    has_restarted = True
                    self.runner.kill()
                    # Events that happen without a listener are sent afterwards.
                    self.run_zmove("submit", "--at", "2100-01-01 00:00", "/etc/hostname", "/tmp/none")
                    self.run_zmove("job", "2", "cancel")
                    self.end_started_runner()
                    self.runner.start()
                if len(seen) == 4:
                    break
            await notices.aclose()
            return seen

        seen = asyncio.run(asyncio.wait_for(listen(), PATIENCE))
        self.assertEqual([kind for _, kind in seen], ["submitted", "cancelled"] * 2)
        self.assertEqual(len({number for number, _ in seen}), 4)

    def run_zmove(self, *words: str) -> None:
        subprocess.run([ZMOVE, *words], env=self.runner.environment, check=True, capture_output=True)

    def end_started_runner(self) -> None:
        """Ends the runner that a command has started, since it does not serve the API."""
        lock, killed = self.runner.jobs / "runner.lock", str(self.runner.process.pid)
        # The command does not wait for the new process, which then writes the file.
        while (text := lock.read_text().strip()) in ("", killed):
            time.sleep(0.01)
        pid = int(text)
        self.assertIn(b"--detached", Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.01)

    def test_a_job_is_awaited_by_the_stream(self) -> None:
        job = self.submit()
        self.assertEqual(asyncio.run(self.client.wait_for(job, PATIENCE)).state, "done")
        # The runner may have ended already.
        self.assertEqual(asyncio.run(self.client.wait_for(job.id, PATIENCE)).state, "done")

    def test_the_examples_run(self) -> None:
        source, target = f"{self.runner.source()}/", str(self.runner.target())
        environment = dict(self.runner.environment, PYTHONPATH=str(HERE.parent / "src"))
        examples = HERE.parent / "examples"

        def run(*words: str, **more: str) -> str:
            ran = subprocess.run(
                [sys.executable, *words], env=dict(environment, **more), capture_output=True, text=True, cwd=examples
            )
            self.assertEqual(ran.returncode, 0, ran.stderr)
            return ran.stdout

        self.assertIn("FINISHED", run("polling.py", source, target))
        cells = json.loads((examples / "notebook.ipynb").read_text())["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        for _ in range(2):
            self.runner.source()
            said = run("-c", code, ZMOVE_SOURCE=source, ZMOVE_TARGET=target)
            self.assertIn("done", said)
            self.assert_arrived()

        def slurm(script: str, **more: str) -> None:
            orders = {"ZMOVE_STAGE_IN": f"{source} {target}", "ZMOVE_STAGE_OUT": f"{source} {target}"}
            run(f"slurm/{script}", **orders, **more, SLURM_JOB_ID="7")

        # A requeued job transfers its input again.
        slurm("prolog.py")
        self.runner.source()
        slurm("prolog.py", SLURM_RESTART_COUNT="1", SLURM_JOB_START_TIME=str(int(time.time())))
        self.assert_arrived()
        with self.assertRaises(AssertionError) as refused:
            slurm("prolog.py", SLURM_RESTART_COUNT="1", SLURM_JOB_START_TIME=str(int(time.time()) + 1000))
        self.assertIn("was done before this run", str(refused.exception))
        slurm("task_epilog.py", SLURM_STEP_ID="2")
        slurm("task_epilog.py", SLURM_STEP_ID="2", SLURM_RESTART_COUNT="1")
        submissions = [job.submission for job in self.client.jobs()][:4]
        ends = [f"slurm-7-run{run}-step2-task0-out" for run in "10"]
        self.assertEqual(submissions, [*ends, "slurm-7-run1-in", "slurm-7-run0-in"])
        for job in list(self.client.jobs())[:2]:
            job.wait(PATIENCE).raise_for_status()
        # Snakemake runs a script with an object of this name.
        class Step:
            input, output = [source], [str(self.runner.directory / "arrived")]
            params = {"target": target}

        for _ in range(2):
            self.runner.source()
            with unittest.mock.patch.dict(os.environ, self.runner.environment):
                runpy.run_path(str(examples / "snakemake/send.py"), {"snakemake": Step})
            self.assertEqual(json.loads((self.runner.directory / "arrived").read_text())["state"], "done")
            self.assert_arrived()

    def assert_arrived(self) -> None:
        """Expects that the target has the current contents of the source."""
        ends = [self.runner.directory / end / "f" for end in ("source", "target")]
        self.assertEqual(*[end.read_bytes() for end in ends])


@unittest.skipUnless(ZMOVE and shutil.which("openssl"), "ZMOVE names no program, or there is no openssl")
class BehindProxy(unittest.TestCase):
    """Tests with a proxy that uses TLS, as from another host."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.files = Path(directory.name)
        for name in ["proxy", "other"]:
            words = ["-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
            curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
            command = ["openssl", "req", "-x509", *curve, *words, "-addext", "subjectAltName=DNS:localhost"]
            subprocess.run(command, check=True, cwd=self.files, capture_output=True)

    def trust(self, name: str) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.files / f"{name}.pem")

    def through(self, use: Callable[[Runner, str], Awaitable[None]]) -> None:
        """Starts a runner and a proxy, and uses the runner through the proxy."""

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(asyncio.current_task())
            there, back = await asyncio.open_connection(*runner.address[len("http://") :].split(":"))
            await asyncio.gather(pump(reader, back), pump(there, writer))

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while piece := await reader.read(65536):
                    writer.write(piece)
                    await writer.drain()
            except OSError:
                pass
            finally:
                writer.close()

        async def run() -> None:
            server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
            name = f"localhost:{server.sockets[0].getsockname()[1]}"
            nonlocal runner
            runner = Runner("--http-name", name)
            try:
                await use(runner, f"https://{name}")
            finally:
                server.close()
                runner.stop()
                await asyncio.gather(*connections)

        runner: Optional[Runner] = None
        connections: List[asyncio.Task] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.files / "proxy.pem", self.files / "proxy.key")
        asyncio.run(run())

    def test_a_job_is_submitted_and_awaited_in_both_ways(self) -> None:
        async def use(runner: Runner, address: str) -> None:
            def submit() -> zmove.Job:
                job = client.submit(f"{runner.source()}/", runner.target(), label="afar")
                self.assertEqual(job.wait(PATIENCE).state, "done")
                return job

            token = (runner.jobs / "token").read_text().strip()
            client = Client(address, token, tls=self.trust("proxy"), timeout=PATIENCE)
            job = await asyncio.get_running_loop().run_in_executor(None, submit)
            self.assertEqual((await client.wait_for(job, PATIENCE)).label, "afar")

        self.through(use)

    def test_a_proxy_that_is_not_trusted_is_told_from_a_runner_that_is_not_at_work(self) -> None:
        async def use(runner: Runner, address: str) -> None:
            strangers = Client(address, "t", tls=self.trust("other"), timeout=PATIENCE)
            elsewhere = Client(address.replace("localhost", "127.0.0.1"), "t", tls=self.trust("proxy"))
            for client in [Client(address, "t"), strangers, elsewhere]:
                with self.assertRaises(zmove.ApiError) as plain:
                    await asyncio.get_running_loop().run_in_executor(None, client.status)
                with self.assertRaises(zmove.ApiError) as stream:
                    await client.wait_for(1, PATIENCE)
                for error in [plain.exception, stream.exception]:
                    self.assertEqual(error.status, 0)
                    self.assertIn(f"TLS with '{client._wire}' failed", str(error))

        self.through(use)

    def test_what_makes_no_sense_is_refused(self) -> None:
        trust = self.trust("proxy")
        for words in [
            {"address": "https://localhost"},
            {"address": "https://localhost", "tls": trust},
            {"address": "http://127.0.0.1:1", "token": "t", "tls": trust},
            {"tls": trust},
        ]:
            with self.assertRaises(ValueError):
                Client(**words)


class NoRunner(unittest.TestCase):
    def test_nobody_who_answers_is_told(self) -> None:
        client = Client(socket="/nowhere/api.sock")
        with self.assertRaises(zmove.NotRunning) as error:
            client.status()
        self.assertIn("is 'zmove runner --http' running?", str(error.exception))
        with self.assertRaises(zmove.NotRunning):
            asyncio.run(client.wait_for(1))

    def test_whoever_else_answers_is_given_the_token_once(self) -> None:
        no_http, no_api = b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
        moved = b"HTTP/1.1 307 x\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
        unknown = (
            b"HTTP/1.1 401 x\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
            b'{"error": "x"}'
        )

        async def ask(said: bytes) -> None:
            asked = []

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(said)
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with tempfile.TemporaryDirectory() as directory:
                (Path(directory) / "token").write_text("f" * 64)
                with unittest.mock.patch.dict(os.environ, ZMOVE_JOBS=directory):
                    client = Client(address)
                job = zmove.Job(client, {"id": 1, "label": "x", "state": "running"})
                with self.assertRaises(zmove.ApiError):
                    await asyncio.get_running_loop().run_in_executor(None, job.wait, 5)
                with self.assertRaises(zmove.ApiError):
                    await client.wait_for(1, 5)
            server.close()
            self.assertEqual(sum(b"Bearer ffff" in head for head in asked), 2)

        for said in [no_http, no_api, moved, unknown]:
            with self.subTest(said):
                asyncio.run(ask(said))

    def test_a_wait_that_is_given_up_when_something_comes_ends(self) -> None:
        from zmove._wire import _within

        async def give_up() -> None:
            comes = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(_within(comes, PATIENCE))
            await asyncio.sleep(0)
            comes.set_result(b"something")
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            with self.assertRaises(asyncio.TimeoutError):
                await _within(asyncio.sleep(PATIENCE), 0.01)

        asyncio.run(give_up())

    def test_addresses_that_make_no_sense_are_refused(self) -> None:
        for address in ["127.0.0.1:80", "ftp://h", "http://"]:
            with self.assertRaises(ValueError):
                Client(address, "t")
        with self.assertRaises(ValueError):
            Client("http://127.0.0.1:1", "t", socket="/s")

    def test_the_place_is_found_as_zmove_finds_it(self) -> None:
        from zmove._wire import jobs_directory

        for variables, expected in [
            ({"ZMOVE_JOBS": "/j", "ZMOVE_HOME": "/h"}, "/j"),
            ({"ZMOVE_HOME": "/h", "XDG_STATE_HOME": "/s"}, "/h/jobs"),
            ({"XDG_STATE_HOME": "/s", "HOME": "/u"}, "/s/zmove/jobs"),
            ({"XDG_STATE_HOME": "s", "HOME": "/u"}, "/u/.local/state/zmove/jobs"),
        ]:
            with unittest.mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(str(jobs_directory()), expected)

    def test_a_stream_is_read_whatever_pieces_it_comes_in(self) -> None:
        words = 'id: 7\nevent: job\ndata: {"event":\ndata: null, "job": {"id": 1}}\n\n:\n\nevent: counts\ndata: {"é": 1}\n\n'
        said = words.encode()

        async def ask(size: int) -> list:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
                for at in range(0, len(said), size):
                    piece = said[at : at + size]
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                writer.close()

            with tempfile.TemporaryDirectory() as directory:
                path = f"{directory}/s"
                server = await asyncio.start_unix_server(answer, path)
                wire = Client(socket=path)._wire
                found = [message async for message in wire.stream("/", None)]
                server.close()
                return found

        for size in [1, 3, 1000]:
            found = asyncio.run(ask(size))
            expected = [("job", 7, {"event": None, "job": {"id": 1}}), ("counts", None, {"é": 1})]
            self.assertEqual(found, expected)


if __name__ == "__main__":
    unittest.main()
