//! Each stage is slowed down in turn, and the summary names it.
//!
//! A slow stage sleeps in a wrapper around the real one or in a system call. All other stages are unchanged and much
//! faster.

use std::fs::File;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use zmove_disk::Direct;
use zmove_receiver::ReceiverConfig;
use zmove_sender::{Limit, SenderConfig};
use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource};
use zmove_types::{BufferPool, GROUP_BYTES, Stopwatch, ThreadState};

use crate::support::command::{ZMOVE, Zmove};
use crate::support::harness::{Site, has_program, skip};
use crate::support::hooks::{HookedDisk, HookedSink};
use crate::support::inprocess::InProcess;
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

/// Number of groups of the large file. Two threads of a stage, or two lanes, process half of the groups each.
const GROUPS: u64 = 8;
/// Minimum additional time of a slow stage per group.
const SLOW_MIN: Duration = Duration::from_millis(200);

/// A push with two threads for each stage.
fn quick() -> InProcess {
    InProcess {
        config: SenderConfig {
            readers: 2,
            direct: Direct::Off,
            ..SenderConfig::default()
        },
        receiver: ReceiverConfig {
            writers: 2,
            direct: Direct::Off,
            ..ReceiverConfig::default()
        },
        ..InProcess::default()
    }
}

/// A push with one slow stage, which needs `slow` more time per group.
struct Fault {
    name: &'static str,
    limit: Limit,
    push: fn(Duration) -> InProcess,
}

const FAULTS: [Fault; 6] = [
    Fault {
        name: "source read",
        limit: Limit::SourceReads,
        push: slow_source,
    },
    Fault {
        name: "sender CPU",
        limit: Limit::SenderCpu,
        push: slow_sender,
    },
    Fault {
        name: "path",
        limit: Limit::Path,
        push: slow_path,
    },
    Fault {
        name: "receiver CPU",
        limit: Limit::ReceiverCpu,
        push: slow_receiver,
    },
    Fault {
        name: "target write",
        limit: Limit::TargetWrites,
        push: slow_target,
    },
    Fault {
        name: "target write, few buffers",
        limit: Limit::TargetWrites,
        push: slow_target_few_buffers,
    },
];

impl Fault {
    /// Returns the verdict if it does not name the slow stage.
    fn wrong(&self) -> Option<String> {
        let site = Site::local();
        File::create(site.source().join("large"))
            .unwrap()
            .set_len(GROUPS * GROUP_BYTES)
            .unwrap();
        // All other stages together take a fraction of the slow stage's time, even on a busy machine.
        let began = Instant::now();
        quick().push(&site.source(), &site.path("quick"));
        let slow = began.elapsed().max(SLOW_MIN);
        let pushed = (self.push)(slow).push(&site.source(), &site.target());
        let bottleneck = pushed.summary().bottleneck;
        assert_same(&site.source(), &site.target());
        (bottleneck.limit != self.limit).then(|| format!("{bottleneck:?}"))
    }
}

#[test]
fn each_slow_stage_is_named() {
    let _quiet = quiet_machine();
    for fault in FAULTS {
        assert_eq!(fault.wrong(), None, "{}", fault.name);
    }
}

/// Run with `ZMOVE_VERDICT_RUNS=10 cargo test --release --test e2e -- --ignored --nocapture
/// each_slow_stage_is_named_every_time`. Slow network paths are measured by `zmove-lab verdicts`.
#[test]
#[ignore = "a measurement: takes a minute"]
fn each_slow_stage_is_named_every_time() {
    let _quiet = quiet_machine();
    let runs: usize = std::env::var("ZMOVE_VERDICT_RUNS").map_or(10, |runs| runs.parse().unwrap());
    let mut wrong = 0;
    let mut tell = |name: &str, said: &mut dyn FnMut() -> Option<String>| {
        let others: Vec<String> = (0..runs).filter_map(|_| said()).collect();
        println!(
            "{name}: {} of {runs} right {}",
            runs - others.len(),
            others.join("; ")
        );
        wrong += others.len();
    };
    for fault in FAULTS {
        tell(fault.name, &mut || fault.wrong());
    }
    if can_delay() {
        tell("target create", &mut slow_creates_wrong);
    }
    assert_eq!(wrong, 0);
}

fn slow_source(slow: Duration) -> InProcess {
    let mut push = quick();
    push.config.file_io = HookedDisk::before_read(move || sleep(slow));
    push
}

/// All data is in the receiver's buffers long before it is written. The sender sees no queue, only the wait at the end.
fn slow_target(slow: Duration) -> InProcess {
    let mut push = quick();
    push.receiver.file_io = HookedDisk::before_write(move || sleep(slow));
    push
}

/// Like [`slow_target`], with buffers for only a part of the data. The sender is blocked by data that has not been
/// stored.
fn slow_target_few_buffers(slow: Duration) -> InProcess {
    let mut push = slow_target(slow);
    push.config.buffers_max = 3;
    push
}

fn slow_path(slow: Duration) -> InProcess {
    slow_sending(slow, ThreadState::Blocked)
}

fn slow_sender(slow: Duration) -> InProcess {
    slow_sending(slow, ThreadState::Busy)
}

/// Lanes that delay data by waiting or by computing.
fn slow_sending(slow: Duration, doing: ThreadState) -> InProcess {
    let before_data = move |watch: &mut Stopwatch<'_>| {
        sleep(slow);
        watch.lap(doing);
    };
    let wrap = move |inner| Box::new(HookedSink { inner, before_data }) as Box<dyn LaneSink>;
    InProcess {
        wrap: Box::new(wrap),
        ..quick()
    }
}

fn slow_receiver(slow: Duration) -> InProcess {
    let wrap = move |inner| Box::new(SlowSource { inner, slow }) as Box<dyn LaneSource>;
    InProcess {
        wrap_source: Box::new(wrap),
        ..quick()
    }
}

#[test]
fn a_target_that_creates_slowly_is_named() {
    let _quiet = quiet_machine();
    if !can_delay() {
        return skip("strace cannot run here: nothing delays a system call");
    }
    assert_eq!(slow_creates_wrong(), None);
}

/// Small files are read and sent long before all of them are created. Only the target sets the time of a file.
fn slow_creates_wrong() -> Option<String> {
    let site = Site::local();
    for number in 0..400 {
        paint(site.source().join(format!("{}/{number}", number % 4)), 1024);
    }
    let mut command = strace("utimensat:delay_enter=20000");
    command
        .arg(ZMOVE)
        .args(["push", "--json"])
        .arg(site.contents())
        .arg(site.target());
    let summary = Zmove(command).outcome().done().summary();
    assert_same(&site.source(), &site.target());
    (summary["limited_by"] != "target_writes").then(|| summary.to_string())
}

fn can_delay() -> bool {
    let mut command = strace("utimensat:delay_enter=1");
    command.arg("true");
    has_program("strace") && Zmove(command).outcome().code == Some(0)
}

/// Returns a tracer that intercepts only the delayed system call.
fn strace(inject: &str) -> Command {
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=utimensat",
    ]);
    command.arg("-e").arg(format!("inject={inject}"));
    command
}

/// A receiving end that decrypts slowly.
struct SlowSource {
    inner: Box<dyn LaneSource>,
    slow: Duration,
}

impl LaneSource for SlowSource {
    fn receive(
        &mut self,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        let frame = self.inner.receive(pool, watch)?;
        if frame
            .as_ref()
            .is_some_and(|frame| frame.header.data_bytes > 0)
        {
            sleep(self.slow);
            watch.lap(ThreadState::Busy);
        }
        Ok(frame)
    }

    fn breaker(&self) -> LaneBreaker {
        self.inner.breaker()
    }
}
