//! The emulated path. It moves packets between two TUN devices, with two threads per direction.
//!
//! The reading thread assigns a due time to each packet. The writing thread sleeps until then and writes the packet.
//! Neither thread polls. The buffers circulate between both threads, so that a running path allocates no memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::network::schedule::{Fate, LinkShape, Schedule};

/// A running path. Its threads end when the devices are removed, and [`Path::join`] waits for that.
#[derive(Debug)]
pub(crate) struct Path {
    threads: Vec<JoinHandle<()>>,
}

impl Path {
    /// Connects two TUN devices, which must use a virtio header.
    pub(crate) fn start(source: File, target: File, shape: LinkShape) -> Result<Self> {
        let source = Arc::new(source);
        let target = Arc::new(target);
        let mut threads = start_direction(&source, &target, shape, "forward")?;
        threads.extend(start_direction(&target, &source, shape, "backward")?);
        Ok(Self { threads })
    }

    /// Waits until both directions have ended.
    pub(crate) fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                eprintln!("zmove-lab: a path thread panicked");
            }
        }
    }
}

fn start_direction(
    from: &Arc<File>,
    to: &Arc<File>,
    shape: LinkShape,
    name: &str,
) -> Result<Vec<JoinHandle<()>>> {
    let line = Arc::new(Line::new(shape));
    let (reading, from) = (Arc::clone(&line), Arc::clone(from));
    let (writing, to) = (line, Arc::clone(to));
    let seed = u64::try_from(name.len()).expect("a short name") * 0x9E37_79B9;
    let reader = thread::Builder::new()
        .name(format!("{name}-read"))
        .spawn(move || reading.fill(&from, Schedule::new(shape, seed)))
        .context("failed to start a path thread")?;
    let writer = thread::Builder::new()
        .name(format!("{name}-write"))
        .spawn(move || writing.empty(&to))
        .context("failed to start a path thread")?;
    Ok(vec![reader, writer])
}

/// One direction of the path: its packets in flight, and spare buffers.
#[derive(Debug)]
struct Line {
    start: Instant,
    in_flight_bytes_max: u64,
    state: Mutex<LineState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct LineState {
    packets: VecDeque<Packet>,
    in_flight_bytes: u64,
    spare_large: Vec<Vec<u8>>,
    spare_small: Vec<Vec<u8>>,
    writer: Writer,
    closed: bool,
}

/// The state of the writing thread.
#[derive(Debug, Default, PartialEq, Eq)]
enum Writer {
    /// The thread is writing or waits for a due time, so a new packet need not wake it.
    #[default]
    Busy,
    /// Waiting for the next packet.
    Idle,
}

#[derive(Debug)]
struct Packet {
    due: Duration,
    bytes: Vec<u8>,
    length: usize,
}

/// The next action of the writing thread.
enum Next {
    Write,
    Sleep(Duration),
    End,
}

impl Line {
    fn new(shape: LinkShape) -> Self {
        let on_the_way = WARM_RATE_BYTES_PER_MS * shape.delay.as_millis();
        let warm = usize::try_from(on_the_way).unwrap_or(0) / LARGE_BYTES;
        let state = LineState {
            spare_large: (0..warm.min(WARM_BUFFERS_MAX))
                .map(|_| vec![1; LARGE_BYTES])
                .collect(),
            ..LineState::default()
        };
        Self {
            start: Instant::now(),
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
            state: Mutex::new(state),
            arrived: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state
            .lock()
            .expect("no path thread panics while it holds the lock")
    }

    /// The reading thread: moves packets from the device to the queue until the device is removed.
    fn fill(&self, mut device: &File, mut schedule: Schedule) {
        let mut buffer = vec![0; LARGE_BYTES];
        loop {
            let length = match device.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let fate = schedule.admit(self.start.elapsed(), wire_bytes(&buffer[..length]));
            if let Fate::Due(due) = fate {
                self.push(due, &mut buffer, length);
            }
        }
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Queues the packet at the start of `buffer`, and replaces `buffer` by an empty one for the next packet.
    fn push(&self, due: Duration, buffer: &mut Vec<u8>, length: usize) {
        let mut state = self.lock();
        let bytes_after = state.in_flight_bytes + length as u64;
        if bytes_after > self.in_flight_bytes_max {
            return;
        }
        let bytes = if length <= SMALL_BYTES {
            let mut small = state
                .spare_small
                .pop()
                .unwrap_or_else(|| vec![0; SMALL_BYTES]);
            small[..length].copy_from_slice(&buffer[..length]);
            small
        } else {
            let fresh = state
                .spare_large
                .pop()
                .unwrap_or_else(|| vec![0; LARGE_BYTES]);
            std::mem::replace(buffer, fresh)
        };
        state.in_flight_bytes = bytes_after;
        state.packets.push_back(Packet { due, bytes, length });
        let wake = std::mem::take(&mut state.writer) == Writer::Idle;
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// The writing thread: moves each packet from the queue to the device when the packet is due.
    fn empty(&self, device: &File) {
        if let Err(error) = rustix::thread::set_current_timer_slack(TIMER_SLACK) {
            eprintln!("zmove-lab: failed to set the timer slack: {error}");
        }
        let mut batch = Vec::with_capacity(BATCH_PACKETS_MAX);
        loop {
            match self.next(&mut batch) {
                Next::Write => write_batch(device, &batch),
                Next::Sleep(duration) => thread::sleep(duration),
                Next::End => return,
            }
        }
    }

    /// Returns the buffers of `batch` and refills it with the packets that are due. Waits while the queue is empty.
    fn next(&self, batch: &mut Vec<Packet>) -> Next {
        let mut state = self.lock();
        for packet in batch.drain(..) {
            state.in_flight_bytes -= packet.length as u64;
            state.keep(packet.bytes);
        }
        while state.packets.is_empty() {
            if state.closed {
                return Next::End;
            }
            state.writer = Writer::Idle;
            state = self
                .arrived
                .wait(state)
                .expect("no path thread panics while it holds the lock");
        }
        state.writer = Writer::Busy;
        let now = self.start.elapsed();
        state.take_due(now + EARLY, batch);
        match state.packets.front() {
            Some(first) if batch.is_empty() => Next::Sleep(first.due.saturating_sub(now)),
            _ => Next::Write,
        }
    }
}

impl LineState {
    fn take_due(&mut self, until: Duration, batch: &mut Vec<Packet>) {
        while batch.len() < BATCH_PACKETS_MAX {
            if self.packets.front().is_none_or(|packet| packet.due > until) {
                return;
            }
            batch.extend(self.packets.pop_front());
        }
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if buffer.len() == SMALL_BYTES {
            self.spare_small.push(buffer);
        } else {
            self.spare_large.push(buffer);
        }
    }
}

/// Writes packets to the device. A packet that the kernel rejects is lost, as on a real path.
fn write_batch(mut device: &File, batch: &[Packet]) {
    for packet in batch {
        let mut outcome = device.write(&packet.bytes[..packet.length]);
        while outcome
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Interrupted)
        {
            outcome = device.write(&packet.bytes[..packet.length]);
        }
    }
}

/// Returns the size of a segment after a virtio header when it is sent as IP packets, including the repeated headers.
/// The fields of the virtio header have the byte order of the machine, which is assumed to be little-endian.
fn wire_bytes(segment: &[u8]) -> u64 {
    let Some((header, packet)) = segment.split_at_checked(VIRTIO_HEADER_BYTES) else {
        return 0;
    };
    let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (cut, checksum_start, checksum_offset) = (field(4), field(6), field(8));
    let headers = match checksum_offset {
        CHECKSUM_OFFSET_TCP => {
            let words = packet
                .get(checksum_start + 12)
                .map_or(5, |byte| usize::from(byte >> 4));
            checksum_start + words * 4
        }
        _ => checksum_start + UDP_HEADER_BYTES,
    };
    if header[1] == GSO_NONE || cut == 0 || packet.len() <= headers {
        return packet.len() as u64;
    }
    let packets = (packet.len() - headers).div_ceil(cut);
    (packet.len() + (packets - 1) * headers) as u64
}

const VIRTIO_HEADER_BYTES: usize = 10;
const GSO_NONE: u8 = 0;
const CHECKSUM_OFFSET_TCP: usize = 16;
const UDP_HEADER_BYTES: usize = 8;

/// Size of the largest IP packet with its virtio header.
const LARGE_BYTES: usize = 65_536 + VIRTIO_HEADER_BYTES;
/// Size of the buffers for acknowledgements and packets with an Ethernet-sized MTU.
const SMALL_BYTES: usize = 2_048;
const BATCH_PACKETS_MAX: usize = 64;
/// Maximum number of bytes in flight in one direction if there is no rate limit. It bounds the memory use.
const IN_FLIGHT_BYTES_MAX: u64 = 1 << 30;
/// Rate for which buffers are allocated in advance, for the duration of the one-way delay: 20 Gbit/s. The first access
/// to memory is slow.
const WARM_RATE_BYTES_PER_MS: u128 = 2_500_000;
const WARM_BUFFERS_MAX: usize = 4_096;
/// How early a packet may be delivered, so that one wakeup can serve several packets.
const EARLY: Duration = Duration::from_micros(30);
const TIMER_SLACK: Option<std::num::NonZeroU64> = std::num::NonZeroU64::new(10_000);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a segment of TCP over IPv4 without options, to be split into packets of `cut` payload bytes.
    fn segment(payload_bytes: usize, cut: u16) -> Vec<u8> {
        let mut bytes = vec![0; VIRTIO_HEADER_BYTES + 40 + payload_bytes];
        bytes[1] = u8::from(cut > 0);
        bytes[4..6].copy_from_slice(&cut.to_le_bytes());
        bytes[6] = 20;
        bytes[8] = 16;
        bytes[VIRTIO_HEADER_BYTES + 32] = 5 << 4;
        bytes
    }

    #[test]
    fn a_plain_packet_counts_once() {
        assert_eq!(wire_bytes(&segment(1_000, 0)), 1_040);
    }

    #[test]
    fn a_whole_segment_counts_a_header_per_packet() {
        assert_eq!(wire_bytes(&segment(3_000, 1_000)), 3 * 1_040);
        assert_eq!(wire_bytes(&segment(3_001, 1_000)), 3_001 + 4 * 40);
    }

    #[test]
    fn a_truncated_header_counts_nothing() {
        assert_eq!(wire_bytes(&[0; 4]), 0);
    }
}
