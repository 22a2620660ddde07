//! A thread with an io_uring instance. It takes operations from a bounded queue, keeps their parts in flight and
//! returns completed parts to the callers.
//!
//! **Invariant:** the thread ends only when no request is in flight, and dropping a [`Ring`] waits for this. Requests
//! that are still in flight when the ring is dropped are canceled, and the thread waits for their completions.
#![expect(unsafe_code, reason = "requests hold addresses")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::EventfdFlags;
use zmove_types::Buffer;

use crate::op::{IoDirection, Op, PartCompletion, RingPart, RingRequest, Span};
use crate::probe::{Unavailable, open_ring, probe};
use crate::registered_buffers::RegisteredBuffers;
use crate::slot::{CANCEL, Slots, WAKE};

/// The settings of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Maximum number of requests in flight. Default: 64. A larger depth helps storage that needs a deep queue and
    /// costs no memory for buffers.
    pub depth: u16,
    /// Size of one request in bytes, a multiple of 4096. Default: 512 KiB. Smaller requests let the caller start
    /// earlier on the first bytes; larger requests need fewer completions.
    pub part_bytes: usize,
    /// Maximum number of registered buffers. Default: 32. Each buffer stays pinned for its lifetime, subject to
    /// `RLIMIT_MEMLOCK`.
    pub registered_max: u16,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            depth: 64,
            part_bytes: 512 << 10,
            registered_max: 32,
        }
    }
}

/// The handle of a ring's thread.
#[derive(Debug)]
pub struct Ring {
    requests: Option<Sender<RingRequest>>,
    wake: Arc<File>,
    thread: Option<JoinHandle<()>>,
    config: RingConfig,
}

impl Ring {
    /// Probes io_uring and starts a thread with its own ring.
    ///
    /// # Errors
    /// Returns the reason why io_uring cannot be used.
    pub fn start(config: RingConfig) -> Result<Self, Unavailable> {
        probe()?;
        let thread_failed = |source| Unavailable::Thread { source };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(|error| thread_failed(error.into()))?;
        let wake = Arc::new(File::from(wake));
        let (requests_in, requests) = bounded(usize::from(config.depth));
        let (opened_in, opened) = bounded(1);
        let woken = Arc::clone(&wake);
        // A single-issuer ring must be created by the thread that uses it.
        let run = move || match Driver::new(config, requests, woken) {
            Ok(driver) => {
                let _started = opened_in.send(Ok(()));
                driver.run();
            }
            Err(error) => {
                let _told = opened_in.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new()
            .name("zmove-ring".into())
            .spawn(run)
            .map_err(thread_failed)?;
        let opened = opened.recv().expect("the thread says how it went");
        opened.map_err(|source| Unavailable::Setup { source })?;
        Ok(Self {
            requests: Some(requests_in),
            wake,
            thread: Some(thread),
            config,
        })
    }

    /// The settings of the ring.
    #[must_use]
    pub fn config(&self) -> RingConfig {
        self.config
    }

    /// Reads up to the length of the span, with several parts in flight, and passes each slice to `seen` once and in
    /// order. Returns the number of bytes passed. It is less than requested at the end of the file or if a later part
    /// failed. The length of the buffer is unchanged.
    ///
    /// # Panics
    /// Panics if the span is outside the buffer's room.
    pub fn read(
        &self,
        file: &Arc<File>,
        span: Span,
        buffer: Buffer,
        seen: &mut dyn FnMut(&[u8]),
    ) -> (io::Result<usize>, Buffer) {
        self.move_bytes(
            Op::new(
                IoDirection::Read,
                file,
                span,
                self.config.part_bytes,
                buffer,
            ),
            seen,
        )
    }

    /// Writes the span, with several parts in flight. Returns the number of bytes written without a gap from the start
    /// of the span.
    ///
    /// # Panics
    /// Panics if the span is outside the buffer's room.
    pub fn write(
        &self,
        file: &Arc<File>,
        span: Span,
        buffer: Buffer,
    ) -> (io::Result<usize>, Buffer) {
        self.move_bytes(
            Op::new(
                IoDirection::Write,
                file,
                span,
                self.config.part_bytes,
                buffer,
            ),
            &mut |_| (),
        )
    }

    fn move_bytes(&self, op: Op, seen: &mut dyn FnMut(&[u8])) -> (io::Result<usize>, Buffer) {
        let parts = op.parts();
        let op = Arc::new(op);
        if parts == 0 {
            // If an empty operation were submitted, the ring would briefly hold a reference to it, and no completion
            // would show when that reference has been dropped.
            return (Ok(0), op.into_buffer());
        }
        let (results_in, results) = bounded(parts);
        self.submit(RingRequest::new(Arc::clone(&op), results_in));
        let mut waiting: Vec<_> = std::iter::repeat_with(|| None).take(parts).collect();
        let mut moved = Ok(0);
        // The next part to process in order, or `None` after a short part: all later parts are ignored.
        let mut next = Some(0);
        for _ in 0..parts {
            let part = results.recv().expect("the ring gives back every part");
            let index = part.index;
            waiting[index] = Some(part);
            while let Some(at) = next.filter(|&at| at < parts) {
                let Some(part) = waiting[at].take() else {
                    break;
                };
                next = match &part.outcome {
                    Ok(bytes) => {
                        if *bytes > 0 && matches!(op.direction(), IoDirection::Read) {
                            seen(op.part_content(&part, *bytes));
                        }
                        moved = moved.map(|before| before + bytes);
                        (*bytes == op.part_len(at)).then_some(at + 1)
                    }
                    Err(_) => None,
                };
                if let Err(error) = part.outcome
                    && let Ok(0) = moved
                {
                    moved = Err(error);
                }
            }
        }
        drop(waiting);
        (moved, op.into_buffer())
    }

    fn submit(&self, request: RingRequest) {
        let requests = self.requests.as_ref().expect("open until dropped");
        requests
            .send(request)
            .expect("the ring's thread lives as long as its handle");
        self.wake();
    }

    fn wake(&self) {
        // The write fails only if the counter is full, and a full counter also wakes the ring.
        let _already_full = rustix::io::write(self.wake.as_fd(), &[1; 8]);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.requests = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The state of the ring's thread. The ring must be dropped before the slots, because the memory in the slots must
/// outlive the kernel's references to it.
struct Driver {
    ring: IoUring,
    slots: Slots,
    registered_buffers: RegisteredBuffers,
    backlog: Option<RingRequest>,
    requests: Receiver<RingRequest>,
    wake: Arc<File>,
    open: bool,
}

impl Driver {
    fn new(
        config: RingConfig,
        requests: Receiver<RingRequest>,
        wake: Arc<File>,
    ) -> io::Result<Self> {
        // Two entries more than slots, for the wake and cancel requests.
        let ring = open_ring((u32::from(config.depth) + 2).next_power_of_two())?;
        let registered_buffers = RegisteredBuffers::new(&ring.submitter(), config.registered_max);
        let slots = Slots::new(config.depth);
        Ok(Self {
            ring,
            slots,
            registered_buffers,
            backlog: None,
            requests,
            wake,
            open: true,
        })
    }

    fn run(mut self) {
        self.arm();
        while self.open || !self.slots.are_empty() {
            while self.slots.has_room() {
                let Some(part) = self.next_part() else { break };
                self.launch(part);
            }
            if self.open || !self.slots.are_empty() {
                self.submit_and_wait();
                self.reap();
            }
        }
    }

    /// Returns the next part to submit, or `None` if there is none. Marks the driver as closed when all callers are
    /// gone.
    fn next_part(&mut self) -> Option<RingPart> {
        loop {
            let part = self.backlog.as_mut().and_then(RingRequest::part);
            // Once all parts of a request have been handed out, the request is dropped, even while no slot is free.
            // Otherwise it would keep its operation alive longer than the parts do.
            self.backlog.take_if(|request| request.is_spent());
            if part.is_some() {
                return part;
            }
            match self.requests.try_recv() {
                Ok(request) => self.backlog = Some(request),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    if std::mem::take(&mut self.open) && !self.slots.are_empty() {
                        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
                        self.push(&cancel.user_data(CANCEL));
                    }
                    return None;
                }
            }
        }
    }

    fn launch(&mut self, part: RingPart) {
        let registered = self
            .registered_buffers
            .index(&self.ring.submitter(), part.op());
        let entry = part.entry(registered);
        let number = self.slots.insert(part);
        self.push(&entry.user_data(number));
    }

    /// Polls the descriptor through which callers wake this thread.
    fn arm(&mut self) {
        let events = u32::from(rustix::event::PollFlags::IN.bits());
        let poll = opcode::PollAdd::new(Fd(self.wake.as_raw_fd()), events).build();
        self.push(&poll.user_data(WAKE));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the slot of a part holds the part's descriptor and memory until the completion is reaped, and the
        // thread does not end before that. The wake and cancel requests refer to no memory, and the driver holds the
        // descriptor.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the queue has room for all slots and two more");
    }

    fn submit_and_wait(&mut self) {
        let submitter = self.ring.submitter();
        let waited = if self.registered_buffers.has_pinned() {
            let patience = Timespec::new().sec(UNPIN_SECONDS);
            submitter.submit_with_args(1, &SubmitArgs::new().timespec(&patience))
        } else {
            submitter.submit_and_wait(1)
        };
        match waited.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR)) => {}
            Err(Some(libc::ETIME)) => self.registered_buffers.unpin_freed(&submitter),
            // The kernel is short of memory, or it must deliver completions before it accepts more requests.
            Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => std::thread::yield_now(),
            Err(error) => panic!("io_uring_enter: error {error:?}"),
        }
    }

    fn reap(&mut self) {
        loop {
            let done = self.ring.completion().next();
            let Some((number, result)) = done.map(|done| (done.user_data(), done.result())) else {
                break;
            };
            match number {
                WAKE => self.finish_wake(),
                CANCEL => {}
                number => {
                    let part = self.slots.release(number).expect("a completion comes once");
                    if let PartCompletion::Resubmit(part) = part.complete(result) {
                        self.launch(part);
                    }
                }
            }
        }
    }

    fn finish_wake(&mut self) {
        // The counter is empty after a spurious wake-up.
        let _count = rustix::io::read(self.wake.as_fd(), &mut [0u8; 8]);
        self.arm();
    }
}

impl Drop for Driver {
    /// Aborts if the thread panics with requests in flight. Unwinding would free memory that the kernel still writes
    /// to, because closing a ring does not wait for its requests.
    fn drop(&mut self) {
        if !self.slots.are_empty() {
            std::process::abort();
        }
    }
}

/// Maximum time, in seconds, that freed memory stays pinned while no request arrives.
const UNPIN_SECONDS: u64 = 1;
