//! Builds the tokio runtime of a command within the resource limits of this process.
//!
//! tokio panics if it cannot start a worker or open a socket for signals. If no thread is idle and no new thread can be
//! started, blocking work may wait forever. A runtime is therefore built only if this process can start all threads and
//! open all descriptors that the runtime needs. The runtime never ends threads that it has started.
//!
//! **Invariant:** if a limit of this process is too low, an error is returned before the work begins. A low limit never
//! causes a panic or an abort.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{gettid, sched_getaffinity};
use tokio::runtime::{Builder, Runtime};
use zmove_types::{ByteCount, Lock};

/// Builds a runtime with this number of workers.
///
/// # Errors
/// Returns an error if the limits of this process are too low for the runtime, or if the system refuses a descriptor.
pub fn build(builder: &mut Builder, workers: usize) -> Result<Runtime> {
    let threads = workers + THREADS_KEPT;
    require_threads(threads).with_context(|| {
        format!(
            "start {threads} threads (raise the limit on processes, 'ulimit -u' or TasksMax=, or on memory, 'ulimit -v')"
        )
    })?;
    require_files().context(FEW_FILES)?;
    let runtime = builder
        .worker_threads(workers)
        .thread_keep_alive(KEPT)
        .enable_all()
        .build()
        .context(FEW_FILES)?;
    start_kept_threads(&runtime);
    Ok(runtime)
}

/// Returns an error if a memory limit of this process is so low that an allocation or a growing stack could abort the
/// process.
///
/// # Errors
/// Returns an error if a limit is too low.
pub fn require_memory() -> Result<()> {
    let needs = [
        (Resource::Stack, "-s", STACK_MIN),
        (Resource::As, "-v", ADDRESSES_MIN),
        (Resource::Data, "-d", DATA_MIN),
    ];
    for (resource, option, least) in needs {
        let limit = getrlimit(resource).current.unwrap_or(u64::MAX);
        ensure!(
            limit >= least,
            "start within the memory limit: the limit is {} and zmove needs {} (raise 'ulimit {option}')",
            ByteCount(limit),
            ByteCount(least)
        );
    }
    Ok(())
}

/// Raises the soft limit on open files to the hard limit, because directories, files and lanes need file descriptors.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses the change, the limit stays unchanged. The code that later runs out of descriptors handles
    // the error.
    let _refused = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Starts this number of threads, which all exist at the same time, and then ends them.
fn require_threads(count: usize) -> io::Result<()> {
    let gate = Lock::new(());
    let wait = || {
        drop(gate.lock());
        gettid()
    };
    let (result, ended) = thread::scope(|scope| {
        let closed = gate.lock();
        let mut started = Vec::new();
        let result = (0..count).try_for_each(|_| {
            started.push(thread::Builder::new().spawn_scoped(scope, wait)?);
            Ok(())
        });
        drop(closed);
        let ended = started.into_iter().filter_map(|thread| thread.join().ok());
        (result, ended.collect::<Vec<_>>())
    });
    // The kernel still counts a thread for a short time after its end.
    let due = Instant::now() + END_MAX;
    while ended.iter().any(|thread| is_known(*thread)) && Instant::now() < due {
        thread::yield_now();
    }
    result
}

/// Returns whether the thread still exists in the kernel.
fn is_known(thread: Pid) -> bool {
    sched_getaffinity(Some(thread)).is_ok()
}

/// Opens as many file descriptors as a runtime needs, and closes them again.
fn require_files() -> io::Result<()> {
    let open = |_| UnixStream::pair();
    (0..FILES_MIN / 2)
        .map(open)
        .collect::<io::Result<Vec<_>>>()
        .map(drop)
}

/// Makes the runtime start the threads that it keeps for blocking work.
fn start_kept_threads(runtime: &Runtime) {
    let gate = Arc::new(Lock::new(()));
    let _closed = gate.lock();
    for _ in 0..THREADS_KEPT {
        let gate = Arc::clone(&gate);
        runtime.spawn_blocking(move || drop(gate.lock()));
    }
}

/// Error context of steps that fail if the process has too few file descriptors.
const FEW_FILES: &str =
    "start the runtime (raise the limit on open files, 'ulimit -n' or LimitNOFILE=)";
/// Number of threads that a runtime keeps for blocking work.
const THREADS_KEPT: usize = 3;
/// Maximum time until the kernel no longer counts threads that have ended.
const END_MAX: Duration = Duration::from_millis(500);
/// Time after which the runtime would end an idle thread. No process runs for this long.
const KEPT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Number of file descriptors that a runtime and its signal handling need, plus a reserve for the work.
const FILES_MIN: usize = 16;
/// Minimum limit on the size of the main thread's stack, in bytes.
const STACK_MIN: u64 = 1 << 20;
/// Minimum limit on the address space, in bytes. The address space contains the stacks of the threads, an arena of the
/// allocator for each thread, and the buffers of the lanes.
const ADDRESSES_MIN: u64 = 1 << 30;
/// Minimum limit on data memory, in bytes. Unused parts of stacks and arenas do not count against this limit.
const DATA_MIN: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_work_has_threads_from_the_beginning() {
        let (started_in, started) = std::sync::mpsc::channel();
        let mut builder = Builder::new_multi_thread();
        builder.on_thread_start(move || started_in.send(()).unwrap());
        let runtime = build(&mut builder, 1).unwrap();
        assert_eq!(runtime.metrics().num_workers(), 1);
        for _ in 0..1 + THREADS_KEPT {
            let began = started.recv_timeout(Duration::from_secs(60));
            began.expect("a thread was started");
        }
    }
}
