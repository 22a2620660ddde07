//! A TCP relay that breaks only on the client's side. It may hold back some of the client's data and deliver it later.
//! The server does not notice the loss.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support::harness::PATIENCE;
use crate::support::proxy::accept;

/// If no data is received for this long, all data that the client sent has been received.
const QUIET: Duration = Duration::from_millis(300);

/// The relay.
pub(crate) struct HalfCut {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Returns the server for a new connection. The argument states whether the first connections have been cut.
    upstream: Box<dyn Fn(bool) -> SocketAddr + Send>,
    /// Number of bytes that the first connections relay to the server.
    passes: usize,
    /// Whether the first connections have been cut. Later connections are relayed without a limit.
    is_cut: bool,
    lets_go: bool,
    /// Number of bytes received on the first connections.
    received: usize,
    clients: Vec<TcpStream>,
    servers: Vec<TcpStream>,
}

impl HalfCut {
    /// Starts a relay that lets `passes` bytes pass to the server that `upstream` returns. The argument of `upstream`
    /// states whether the first connections have been cut.
    pub(crate) fn start(
        passes: usize,
        upstream: impl Fn(bool) -> SocketAddr + Send + 'static,
    ) -> Self {
        let state = State {
            upstream: Box::new(upstream),
            passes,
            is_cut: false,
            lets_go: false,
            received: 0,
            clients: Vec::new(),
            servers: Vec::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let address = accept(move |client| accepting.relay(client));
        Self { address, shared }
    }

    /// Waits until at least `bytes` bytes have been received and no more arrive.
    #[track_caller]
    pub(crate) fn wait_until_all_is_held_back(&self, bytes: usize) {
        let mut state = self.shared.state.lock().unwrap();
        loop {
            let before = state.received;
            let patience = if before < bytes { PATIENCE } else { QUIET };
            let same = |state: &mut State| state.received == before;
            let waited = self
                .shared
                .changed
                .wait_timeout_while(state, patience, same);
            let (now, waited) = waited.unwrap();
            if waited.timed_out() {
                assert!(before >= bytes, "the client sends nothing more");
                return;
            }
            state = now;
        }
    }

    /// Closes the first connections on the client's side.
    pub(crate) fn cut(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.is_cut = true;
        for client in &state.clients {
            drop(client.shutdown(Shutdown::Write));
        }
    }

    /// Delivers the data that was held back.
    pub(crate) fn let_go(&self) {
        self.shared.state.lock().unwrap().lets_go = true;
        self.shared.changed.notify_all();
    }

    /// Closes the first connections on the server's side, too.
    pub(crate) fn end(&self) {
        for server in &self.shared.state.lock().unwrap().servers {
            drop(server.shutdown(Shutdown::Both));
        }
    }
}

impl Shared {
    fn relay(self: &Arc<Self>, client: TcpStream) {
        let mut state = self.state.lock().unwrap();
        let server = TcpStream::connect((state.upstream)(state.is_cut)).unwrap();
        let is_first = !state.is_cut;
        let copy = |stream: &TcpStream| stream.try_clone().unwrap();
        if is_first {
            state.clients.push(copy(&client));
            state.servers.push(copy(&server));
        }
        drop(state);
        let up = (copy(&client), copy(&server));
        std::thread::spawn(move || {
            pass(server, &client, |_| true).map(|_| client.shutdown(Shutdown::Both))
        });
        let shared = Arc::clone(self);
        std::thread::spawn(move || shared.carry_up(up.0, &up.1, is_first));
    }

    fn carry_up(&self, from: TcpStream, to: &TcpStream, is_first: bool) {
        let passes = |bytes: usize| {
            if !is_first {
                return true;
            }
            let mut state = self.state.lock().unwrap();
            state.received += bytes;
            self.changed.notify_all();
            state.received <= state.passes
        };
        let held_back = pass(from, to, passes).unwrap_or_default();
        if !is_first {
            drop(to.shutdown(Shutdown::Write));
            return;
        }
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.lets_go));
        let mut to = to;
        // The server may have ended.
        drop(to.write_all(&held_back));
    }
}

/// Relays `passes` bytes, or fewer if the stream ends or breaks. Returns the remaining data.
fn pass(
    mut from: TcpStream,
    mut to: &TcpStream,
    passes: impl Fn(usize) -> bool,
) -> std::io::Result<Vec<u8>> {
    let mut room = vec![0; 64 << 10];
    let mut rest = Vec::new();
    loop {
        match from.read(&mut room) {
            Ok(0) | Err(_) => return Ok(rest),
            Ok(taken) if passes(taken) && rest.is_empty() => to.write_all(&room[..taken])?,
            Ok(taken) => rest.extend_from_slice(&room[..taken]),
        }
    }
}
