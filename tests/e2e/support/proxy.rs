//! A TCP relay that stops after a given number of bytes, so that the point of an interruption is deterministic. It can
//! also search the data for a pattern and modify it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use crate::support::harness::PATIENCE;

/// A connection that has carried this many bytes is a lane.
const LANE_BYTES: u64 = 128 << 10;

/// The relay.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    upstream: SocketAddr,
    /// Bytes that may still be relayed upstream.
    bytes_left: u64,
    /// Bytes between two cuts, if the relay closes all connections and accepts new ones instead of stalling.
    cuts_after: Option<u64>,
    /// Bytes that may pass before each of the next cuts.
    cuts: VecDeque<u64>,
    /// Bytes that may still be relayed downstream, and the limit after the connections have been closed at the first
    /// one.
    down: Option<(u64, u64)>,
    /// Condition that closes all connections once, checked when data arrives from upstream.
    cuts_when: Option<Box<dyn Fn() -> bool + Send>>,
    strike: Option<Strike>,
    open: Vec<TcpStream>,
    /// Bytes that each pair of connections has carried upstream.
    carried: Vec<u64>,
    /// Whether stalled connections have been resumed.
    resumed: bool,
    /// Number of connections that arrived while no upstream was listening.
    refused: usize,
}

/// Flips one bit on the way upstream, at the first occurrence of a pattern.
#[derive(Clone, Copy)]
pub(crate) struct Strike {
    pub(crate) seen: &'static [u8],
    /// Number of bytes between the flipped byte and the pattern.
    pub(crate) before: usize,
}

/// The direction in which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the upstream.
    Up,
    /// From the upstream.
    Down,
}

impl Proxy {
    /// Starts a relay to `upstream` that stalls after `bytes_max` bytes in that direction.
    pub(crate) fn start(upstream: SocketAddr, bytes_max: u64) -> Self {
        Self::start_with(upstream, (bytes_max, None), None)
    }

    /// Starts a relay to `upstream` that closes all connections after each `bytes` bytes in that direction.
    pub(crate) fn cutting(upstream: SocketAddr, bytes: u64) -> Self {
        Self::start_with(upstream, (bytes, Some(bytes)), None)
    }

    /// Starts a relay to `upstream` that closes all connections after each `bytes` bytes from upstream.
    pub(crate) fn cutting_down(upstream: SocketAddr, bytes: u64) -> Self {
        let proxy = Self::start(upstream, u64::MAX);
        proxy.shared.state.lock().unwrap().down = Some((bytes, bytes));
        proxy
    }

    /// Starts a relay to `upstream` that closes all connections after given numbers of bytes in one direction. Each
    /// number counts from the previous cut.
    pub(crate) fn cutting_at(upstream: SocketAddr, way: Way, cuts: &[u64]) -> Self {
        let mut cuts: VecDeque<_> = cuts.iter().copied().collect();
        let first = cuts.pop_front().unwrap_or(u64::MAX);
        let proxy = Self::start_with(upstream, (u64::MAX, Some(u64::MAX)), None);
        let mut state = proxy.shared.state.lock().unwrap();
        match way {
            Way::Up => state.bytes_left = first,
            Way::Down => state.down = Some((first, u64::MAX)),
        }
        state.cuts = cuts;
        drop(state);
        proxy
    }

    /// Starts a relay to `upstream` that closes all connections once, when data arrives from upstream and
    /// `has_happened` returns `true`.
    pub(crate) fn cutting_when(
        upstream: SocketAddr,
        has_happened: impl Fn() -> bool + Send + 'static,
    ) -> Self {
        let proxy = Self::start(upstream, u64::MAX);
        proxy.shared.state.lock().unwrap().cuts_when = Some(Box::new(has_happened));
        proxy
    }

    /// Starts a relay to `upstream` that flips one bit.
    pub(crate) fn striking(upstream: SocketAddr, strike: Strike) -> Self {
        Self::start_with(upstream, (u64::MAX, None), Some(strike))
    }

    fn start_with(
        upstream: SocketAddr,
        (bytes_left, cuts_after): (u64, Option<u64>),
        strike: Option<Strike>,
    ) -> Self {
        let state = Mutex::new(State {
            upstream,
            bytes_left,
            cuts_after,
            cuts: VecDeque::new(),
            down: None,
            cuts_when: None,
            strike,
            open: Vec::new(),
            carried: Vec::new(),
            resumed: false,
            refused: 0,
        });
        let shared = Arc::new(Shared {
            state,
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let address = accept(move |client| accepting.relay(client));
        Self { address, shared }
    }

    /// Waits until no more bytes may pass.
    pub(crate) fn wait_for_stall(&self) {
        let state = self.shared.state.lock().unwrap();
        let flowing = |state: &mut State| state.bytes_left > 0;
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, flowing)
            .unwrap();
        assert_eq!(
            state.bytes_left, 0,
            "the transfer came to an end before the relay stalled"
        );
    }

    /// Whether the bit has been flipped.
    pub(crate) fn has_struck(&self) -> bool {
        self.shared.state.lock().unwrap().strike.is_none()
    }

    /// Waits for `count` connections while no upstream is listening.
    pub(crate) fn wait_for_refused(&self, count: usize) {
        let state = self.shared.state.lock().unwrap();
        let fewer = |state: &mut State| state.refused < count;
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, fewer)
            .unwrap();
        assert!(state.refused >= count, "the client does not dial again");
    }

    /// Number of connections since the last reset.
    pub(crate) fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().carried.len()
    }

    /// Waits for `count` connections.
    pub(crate) fn wait_for_connections(&self, count: usize) {
        let state = self.shared.state.lock().unwrap();
        let fewer = |state: &mut State| state.carried.len() < count;
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, fewer)
            .unwrap();
        assert!(state.carried.len() >= count, "no other connection comes");
    }

    /// Lets some more bytes pass upstream until `count` connections have carried more data than control messages need.
    /// On a busy host a lane may connect late.
    pub(crate) fn wait_for_busy(&self, count: usize) {
        loop {
            let mut state = self.shared.state.lock().unwrap();
            if state
                .carried
                .iter()
                .filter(|carried| **carried >= LANE_BYTES)
                .count()
                >= count
            {
                return;
            }
            (state.bytes_left, state.resumed) = (LANE_BYTES, true);
            self.shared.changed.notify_all();
            drop(state);
            self.wait_for_stall();
        }
    }

    /// Closes the `count` connections that have carried the most bytes, and resumes the others.
    pub(crate) fn resume_without_busiest(&self, count: usize) {
        self.resume_without(count, u64::MAX);
    }

    /// Like [`Self::resume_without_busiest`], and stalls again after `bytes_max` more bytes upstream.
    pub(crate) fn resume_without(&self, count: usize, bytes_max: u64) {
        let mut state = self.shared.state.lock().unwrap();
        let mut busiest: Vec<_> = (0..state.carried.len()).collect();
        busiest.sort_unstable_by_key(|number| std::cmp::Reverse(state.carried[*number]));
        for number in busiest.into_iter().take(count) {
            for stream in &state.open[2 * number..2 * number + 2] {
                drop(stream.shutdown(Shutdown::Both));
            }
        }
        (state.bytes_left, state.resumed) = (bytes_max, true);
        self.shared.changed.notify_all();
    }

    /// Closes all connections and relays new ones to `upstream` without a limit.
    pub(crate) fn reset(&self, upstream: SocketAddr) {
        self.reset_for(upstream, u64::MAX);
    }

    /// Closes all connections, relays new ones to `upstream`, and stalls again after `bytes_max` bytes.
    pub(crate) fn reset_for(&self, upstream: SocketAddr, bytes_max: u64) {
        let mut state = self.shared.state.lock().unwrap();
        state.cut();
        (state.upstream, state.bytes_left, state.resumed) = (upstream, bytes_max, false);
        self.shared.changed.notify_all();
    }
}

/// Listens on a free port, and calls `relay` with each connection.
pub(crate) fn accept(relay: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            relay(client);
        }
    });
    address
}

impl State {
    fn cut(&mut self) {
        for stream in self.open.drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
        self.carried.clear();
    }
}

impl Shared {
    fn relay(self: &Arc<Self>, client: TcpStream) {
        let upstream = self.state.lock().unwrap().upstream;
        let Ok(server) = TcpStream::connect(upstream) else {
            self.state.lock().unwrap().refused += 1;
            return self.changed.notify_all();
        };
        let ways = [&client, &server].map(|stream| stream.try_clone().unwrap());
        let mut state = self.state.lock().unwrap();
        state.open.extend(ways);
        state.carried.push(0);
        let number = state.carried.len() - 1;
        drop(state);
        self.changed.notify_all();
        let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let [shared, other] = [Arc::clone(self), Arc::clone(self)];
        std::thread::spawn(move || shared.pump_up(number, up, server));
        std::thread::spawn(move || other.pump_down(down, client));
    }

    fn pump_up(&self, number: usize, mut from: TcpStream, mut to: TcpStream) {
        let mut room = vec![0; 64 << 10];
        while let Ok(taken @ 1..) = from.read(&mut room) {
            self.strike(&mut room[..taken]);
            if !self.admit(number, taken as u64) || to.write_all(&room[..taken]).is_err() {
                break;
            }
        }
        drop(to.shutdown(Shutdown::Write));
    }

    fn strike(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock().unwrap();
        let Some(Strike { seen, before }) = state.strike else {
            return;
        };
        let found = bytes.windows(seen.len()).position(|window| window == seen);
        if let Some(at) = found.and_then(|at| at.checked_sub(before)) {
            bytes[at] ^= 1;
            state.strike = None;
        }
    }

    /// Waits until bytes may pass. Returns `false` if the relay was reset.
    fn admit(&self, number: usize, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        if let Some(carried) = state.carried.get_mut(number) {
            *carried += bytes;
        }
        if state.bytes_left >= bytes {
            state.bytes_left -= bytes;
            return true;
        }
        if let Some(bytes) = state.cuts_after {
            state.cut();
            state.bytes_left = state.cuts.pop_front().unwrap_or(bytes);
            return false;
        }
        state.bytes_left = 0;
        self.changed.notify_all();
        self.changed
            .wait_while(state, |state| state.bytes_left == 0)
            .unwrap()
            .resumed
    }

    fn pump_down(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut room = vec![0; 64 << 10];
        while let Ok(taken @ 1..) = from.read(&mut room) {
            if !self.may_come_down(taken as u64) || to.write_all(&room[..taken]).is_err() {
                break;
            }
        }
        // The other end must notice the loss even while the upstream direction is stalled.
        drop(to.shutdown(Shutdown::Both));
    }

    fn may_come_down(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        if state
            .cuts_when
            .take_if(|has_happened| has_happened())
            .is_some()
        {
            state.cut();
            return false;
        }
        let Some((left, each)) = state.down else {
            return true;
        };
        if left >= bytes {
            state.down = Some((left - bytes, each));
            return true;
        }
        let next = state.cuts.pop_front().unwrap_or(each);
        state.down = Some((next, each));
        state.cut();
        false
    }
}
