//! `siege` measures pushes while another client keeps opening connections that never become sessions.

use std::fmt;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::measurements::peers::zmove_binary;
use crate::soak::level::Level;
use crate::torture::programs::{CLIENT_HOME, Daemon, Place, Running};

/// The settings of the siege test.
#[derive(Args, Debug)]
pub(crate) struct SiegeArgs {
    /// Number of connections that are held open. The oldest connection is replaced by a new one repeatedly, in `churn`
    /// without a pause.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Number of pushes of each kind, in turn.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Size of the file to push, in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Directory for keys, source and target.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
}

/// The behavior of the other client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Siege {
    /// There is no other client.
    None,
    /// Connections that send nothing.
    Silent,
    /// Connections that repeatedly send one byte each, in turn.
    Slow,
    /// Connections that announce a record of 16 KiB and do not send it.
    Promise,
    /// Connections that are opened and closed, at most ten per millisecond.
    Churn,
}

/// Runs the measurements and prints them. Fails if a push fails.
pub(crate) fn siege(arguments: &SiegeArgs) -> Result<ExitCode> {
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let directory = arguments
        .dir
        .join(format!("zmove-siege-{}", std::process::id()));
    fs::create_dir(&directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let done = run(arguments, &zmove, &directory);
    fs::remove_dir_all(&directory)
        .with_context(|| format!("failed to remove {}", directory.display()))?;
    done.map(|()| ExitCode::SUCCESS)
}

fn run(arguments: &SiegeArgs, zmove: &str, directory: &Path) -> Result<()> {
    let (source, target) = (directory.join("source"), directory.join("target"));
    fs::create_dir(&source)?;
    fs::create_dir(&target)?;
    fs::write(source.join("large"), vec![7; arguments.mib << 20])?;
    let place = Place::prepare(zmove, directory, &target, &["--write"])?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut daemon = place.serve(address, &["--metrics", "off"])?;
    push(&place, &source, address, &target)?;
    for siege in [
        Siege::None,
        Siege::Silent,
        Siege::Slow,
        Siege::Promise,
        Siege::Churn,
    ] {
        let mut times = Vec::new();
        for _ in 0..arguments.runs {
            times.push(beside(siege, arguments.connections, address, || {
                push(&place, &source, address, &target)
            })?);
        }
        tell(siege, arguments.mib, times, &mut daemon)?;
    }
    Ok(())
}

fn tell(siege: Siege, mib: usize, mut times: Vec<Duration>, daemon: &mut Daemon) -> Result<()> {
    times.sort();
    let median = times[times.len() / 2].as_secs_f64();
    let rate = u32::try_from(mib).map(f64::from)? / median;
    let level = Level::of(daemon.running().id())?;
    println!("{siege}: {median:.2} s, {rate:.0} MiB/s; the daemon then: {level}");
    Ok(())
}

/// Runs `work` while the other client is active.
fn beside<T>(
    siege: Siege,
    connections: usize,
    to: SocketAddr,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (ready_in, ready) = std::sync::mpsc::channel();
        let besiegers = scope.spawn(|| besiege(siege, connections, to, &over, ready_in));
        // The wait also ends if the other client fails.
        let _begun = ready.recv();
        let worked = work();
        over.store(true, Ordering::Relaxed);
        besiegers
            .join()
            .unwrap_or_else(|_| bail!("the besieger panicked"))?;
        worked
    })
}

fn besiege(
    siege: Siege,
    connections: usize,
    to: SocketAddr,
    over: &AtomicBool,
    ready: std::sync::mpsc::Sender<()>,
) -> Result<()> {
    let mut open = Vec::new();
    if !matches!(siege, Siege::None | Siege::Churn) {
        for _ in 0..connections {
            let mut stream = TcpStream::connect(to).context("failed to connect")?;
            if siege == Siege::Promise {
                // Some connections may be closed already.
                let _closed = stream.write_all(&[22, 3, 1, 0x40, 0, 1, 0xFF, 0xFF, 0xFF]);
            }
            open.push(stream);
        }
    }
    let _nobody_waits = ready.send(());
    while !over.load(Ordering::Relaxed) {
        match siege {
            Siege::None => {}
            Siege::Churn => drop(TcpStream::connect(to)),
            Siege::Slow => open.iter_mut().rev().take(SLOW_AT_ONCE).for_each(|stream| {
                let _closed = stream.write_all(&[22]);
            }),
            Siege::Silent | Siege::Promise => renew(&mut open, to),
        }
        std::thread::sleep(if siege == Siege::Churn {
            CHURN_PAUSE
        } else {
            PAUSE
        });
    }
    Ok(())
}

/// Replaces the oldest connections.
fn renew(open: &mut Vec<TcpStream>, to: SocketAddr) {
    for _ in 0..RENEWED_AT_ONCE {
        open.remove(0);
        open.extend(TcpStream::connect(to));
    }
}

fn push(place: &Place, source: &Path, to: SocketAddr, target: &Path) -> Result<Duration> {
    let began = Instant::now();
    let mut command = place.command(CLIENT_HOME);
    command.args(["push", "--accept-new", "--quiet", "--durability", "none"]);
    command.arg(source.join("")).arg(format!("{to}:"));
    let mut push = Running::start(&mut command)?;
    let Some(status) = push.wait(PATIENCE)? else {
        bail!("a push does not end")
    };
    let took = began.elapsed();
    if !status.success() {
        bail!("a push ended with {status}");
    }
    fs::remove_file(target.join("large"))?;
    Ok(took)
}

const SLOW_AT_ONCE: usize = 256;
const RENEWED_AT_ONCE: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);
const CHURN_PAUSE: Duration = Duration::from_micros(100);
const PATIENCE: Duration = Duration::from_secs(120);

impl fmt::Display for Siege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "alone",
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::Promise => "promise",
            Self::Churn => "churn",
        })
    }
}
