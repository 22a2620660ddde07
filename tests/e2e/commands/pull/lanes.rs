//! Lanes of a pull: this side opens them, and the daemon decides their number.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use zmove_types::GROUP_BYTES;

use super::{assert_counts, site};
use crate::support::harness::PATIENCE;
use crate::support::tree::{assert_same, paint};

/// The point at which the third lane's connection is closed.
#[derive(Clone, Copy, Debug)]
enum Closed {
    AtOnce,
    /// After this side has completed the handshake, but before the daemon has.
    AfterTheHandshake,
}

/// A connection on which this many bytes were received carries data. Handshakes and control messages need fewer.
const HANDSHAKE_BYTES: usize = 16 << 10;
/// Index of the third lane's connection. The control connection and two lanes come before it.
const THIRD_LANE: usize = 3;
const CONNECTIONS: usize = THIRD_LANE + 2;

/// A relay for a scripted failure. It stalls the first lane with data, closes the second one when it has data, closes
/// the replacement of the second one, and lets all data pass when another lane has connected.
#[derive(Default)]
struct Relay {
    state: Mutex<RelayState>,
    changed: Condvar,
}

#[derive(Default)]
struct RelayState {
    came: usize,
    holds_one: bool,
}

impl Relay {
    fn start(daemon: SocketAddr, closed: Closed) -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let started = Arc::<Self>::default();
        let relay = Arc::clone(&started);
        thread::spawn(move || {
            for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
                relay.state.lock().unwrap().came += 1;
                relay.changed.notify_all();
                if number == THIRD_LANE && matches!(closed, Closed::AtOnce) {
                    continue;
                }
                let upstream = TcpStream::connect(daemon).unwrap();
                let (up_from, up_to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                let holding = Arc::clone(&relay);
                let mut left = HANDSHAKE_BYTES;
                let down = move |bytes: usize| {
                    let was_handshake = left > 0;
                    left = left.saturating_sub(bytes);
                    let is_first_data = was_handshake && left == 0;
                    number >= THIRD_LANE || !is_first_data || holding.lets_data_pass()
                };
                let mut said = 0;
                let up = move |_| {
                    said += 1;
                    number != THIRD_LANE || said == 1
                };
                thread::spawn(move || pump(upstream, client, down));
                thread::spawn(move || pump(up_from, up_to, up));
            }
        });
        (address, started)
    }

    fn lets_data_pass(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        if std::mem::replace(&mut state.holds_one, true) {
            return false;
        }
        let fewer = |state: &mut RelayState| state.came < CONNECTIONS;
        drop(
            self.changed
                .wait_timeout_while(state, PATIENCE, fewer)
                .unwrap(),
        );
        true
    }
}

/// Relays bytes and the end of the stream. Closes both streams when `goes` returns `false`.
fn pump(mut from: TcpStream, mut to: TcpStream, mut goes: impl FnMut(usize) -> bool) {
    let mut room = vec![0; 64 << 10];
    while let Ok(taken @ 1..) = from.read(&mut room) {
        if !goes(taken) || to.write_all(&room[..taken]).is_err() {
            drop(from.shutdown(Shutdown::Both));
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

/// The daemon would wait for that lane until the transfer ends. If it is the only lane, the transfer would never end.
#[test]
fn a_lane_that_never_reaches_the_daemon_is_dialled_again() {
    for closed in [Closed::AtOnce, Closed::AfterTheHandshake] {
        let site = site();
        // The file is larger than the data that the stalled lane accepts until its sockets are full.
        paint(site.source().join("f"), 10 * GROUP_BYTES);
        let daemon = site.the_daemon();
        let (address, relay) = Relay::start(daemon.address, closed);
        site.pin(&address, daemon.fingerprint);
        let source = format!("{address}:{}/", site.source().display());
        let mut pull = site.zmove(&[
            "pull",
            "--json",
            "--transport",
            "tcp",
            "--streams",
            "2",
            &source,
        ]);
        pull.0.arg(site.target());
        let summary = pull.outcome().done().summary();
        assert_same(&site.source(), &site.target());
        assert_counts(&summary, &[("reconnects", 0)]);
        assert!(
            relay.state.lock().unwrap().came >= CONNECTIONS,
            "{closed:?}: no other lane was dialled"
        );
    }
}
