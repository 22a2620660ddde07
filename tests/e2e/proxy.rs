//! A TCP relay that stops after a given number of bytes, so that "in mid-transfer" is an event and no guess; or that
//! reads what passes, and changes it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use crate::harness::PATIENCE;

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
    /// What may still go upstream.
    bytes_left: u64,
    strike: Option<Strike>,
    open: Vec<TcpStream>,
    /// Connections that came when nobody was upstream.
    refused: usize,
}

/// One bit that is flipped on the way up, where these bytes are first seen.
#[derive(Clone, Copy)]
pub(crate) struct Strike {
    pub(crate) seen: &'static [u8],
    /// How far before them.
    pub(crate) before: usize,
}

impl Proxy {
    /// A relay to `upstream` that stalls when `bytes_max` have gone there.
    pub(crate) fn start(upstream: SocketAddr, bytes_max: u64) -> Self {
        Self::start_with(upstream, bytes_max, None)
    }

    /// A relay to `upstream` that strikes once.
    pub(crate) fn striking(upstream: SocketAddr, strike: Strike) -> Self {
        Self::start_with(upstream, u64::MAX, Some(strike))
    }

    fn start_with(upstream: SocketAddr, bytes_max: u64, strike: Option<Strike>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state =
            Mutex::new(State { upstream, bytes_left: bytes_max, strike, open: Vec::new(), refused: 0 });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepting.relay(client);
            }
        });
        Self { address, shared }
    }

    /// Waits until no more may pass.
    pub(crate) fn wait_for_stall(&self) {
        let state = self.shared.state.lock().unwrap();
        let flowing = |state: &mut State| state.bytes_left > 0;
        let (state, _) = self.shared.changed.wait_timeout_while(state, PATIENCE, flowing).unwrap();
        assert_eq!(state.bytes_left, 0, "the transfer came to an end before the relay stalled");
    }

    /// Whether it has struck.
    pub(crate) fn has_struck(&self) -> bool {
        self.shared.state.lock().unwrap().strike.is_none()
    }

    /// Waits until so many connections have come for nobody.
    pub(crate) fn wait_for_refused(&self, count: usize) {
        let state = self.shared.state.lock().unwrap();
        let fewer = |state: &mut State| state.refused < count;
        let (state, _) = self.shared.changed.wait_timeout_while(state, PATIENCE, fewer).unwrap();
        assert!(state.refused >= count, "the client does not dial again");
    }

    /// Closes all connections and sends new ones to `upstream`, without a limit.
    pub(crate) fn reset(&self, upstream: SocketAddr) {
        self.reset_for(upstream, u64::MAX);
    }

    /// The same, and stalls again when `bytes_max` more have gone there.
    pub(crate) fn reset_for(&self, upstream: SocketAddr, bytes_max: u64) {
        let mut state = self.shared.state.lock().unwrap();
        for stream in state.open.drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
        (state.upstream, state.bytes_left) = (upstream, bytes_max);
        self.shared.changed.notify_all();
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
        self.state.lock().unwrap().open.extend(ways);
        let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let shared = Arc::clone(self);
        std::thread::spawn(move || shared.pump_up(up, server));
        std::thread::spawn(move || pump_down(down, client));
    }

    fn pump_up(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut room = vec![0; 64 << 10];
        while let Ok(taken @ 1..) = from.read(&mut room) {
            self.strike(&mut room[..taken]);
            if !self.admit(taken as u64) || to.write_all(&room[..taken]).is_err() {
                break;
            }
        }
        drop(to.shutdown(Shutdown::Write));
    }

    fn strike(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock().unwrap();
        let Some(Strike { seen, before }) = state.strike else { return };
        let found = bytes.windows(seen.len()).position(|window| window == seen);
        if let Some(at) = found.and_then(|at| at.checked_sub(before)) {
            bytes[at] ^= 1;
            state.strike = None;
        }
    }

    /// Waits until bytes may pass; false when the relay was reset meanwhile.
    fn admit(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.bytes_left >= bytes {
            state.bytes_left -= bytes;
            return true;
        }
        state.bytes_left = 0;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.bytes_left == 0).unwrap());
        false
    }
}

fn pump_down(mut from: TcpStream, mut to: TcpStream) {
    let mut room = vec![0; 64 << 10];
    while let Ok(taken @ 1..) = from.read(&mut room) {
        if to.write_all(&room[..taken]).is_err() {
            break;
        }
    }
    // whoever is gone, the other end must learn of it even while the way up is stalled
    drop(to.shutdown(Shutdown::Both));
}
