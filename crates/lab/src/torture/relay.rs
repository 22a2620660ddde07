//! A TCP relay between client and daemon that can stop at a byte position and disturb the connections.
//!
//! **Invariant:** when the gate reports that it was reached, exactly the configured number of bytes has passed to the
//! receiver in this attempt. No more bytes pass until the gate is opened.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use super::dice::Dice;
use super::options::Direction;

/// The direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Towards the receiver.
    Up,
    /// Towards the sender.
    Down,
}

/// How connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Connections are closed normally, as by a program that has finished.
    Closed,
    /// Connections are reset, as by a host that does not know them.
    Reset,
}

/// The corruption of bytes in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// One bit is flipped.
    Flip,
    /// Some bytes are duplicated.
    Double,
}

/// The function that is called when the gate is reached.
pub(crate) type Tell = Box<dyn Fn() + Send>;

/// The relay. Its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    direction: Direction,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    over: bool,
    /// Bytes that passed to the receiver in this attempt.
    passed: u64,
    gate: Option<Gate>,
    /// The pending corruption of bytes in one direction.
    harm: Option<(Way, Harm, Dice)>,
    connections: BTreeMap<u64, Connection>,
    opened: u64,
}

struct Gate {
    at: u64,
    tell: Option<Tell>,
}

#[derive(Debug)]
struct Connection {
    sender: Arc<TcpStream>,
    receiver: Arc<TcpStream>,
    /// The direction in which bytes are discarded.
    deaf: Option<Way>,
}

impl Relay {
    /// Starts relaying to the daemon at `upstream`, which is the receiver or the sender.
    pub(crate) fn start(upstream: SocketAddr, direction: Direction) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("failed to bind the relay")?;
        let address = listener.local_addr().context("failed to bind the relay")?;
        let state = State {
            over: false,
            passed: 0,
            gate: None,
            harm: None,
            connections: BTreeMap::new(),
            opened: 0,
        };
        let shared = Arc::new(Shared {
            upstream,
            direction,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.state().over {
                    return;
                }
                accepting.relay(client);
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts another attempt. Connections of the previous one are closed.
    pub(crate) fn begin(&self) {
        self.open_gate();
        self.cut(Cut::Closed);
        let mut state = self.shared.state();
        (state.passed, state.harm) = (0, None);
    }

    /// Lets at most `bytes` bytes of this attempt pass to the receiver. Calls `tell` when more would pass.
    pub(crate) fn close_gate(&self, bytes: u64, tell: Tell) {
        self.shared.state().gate = Some(Gate {
            at: bytes,
            tell: Some(tell),
        });
    }

    /// Lets all data pass.
    pub(crate) fn open_gate(&self) {
        self.shared.state().gate = None;
        self.shared.changed.notify_all();
    }

    /// Lets no data pass to the receiver until the gate is opened.
    pub(crate) fn stall(&self) {
        self.shared.state().gate = Some(Gate { at: 0, tell: None });
    }

    /// Returns the number of bytes that passed to the receiver in this attempt.
    pub(crate) fn passed(&self) -> u64 {
        self.shared.state().passed
    }

    /// Ends all connections.
    pub(crate) fn cut(&self, how: Cut) {
        for connection in std::mem::take(&mut self.shared.state().connections).into_values() {
            connection.cut(how);
        }
    }

    /// Ends one connection, if there is one.
    pub(crate) fn cut_one(&self, dice: &mut Dice, how: Cut) {
        let mut state = self.shared.state();
        if let Some(id) = state.draw(dice)
            && let Some(connection) = state.connections.remove(&id)
        {
            connection.cut(how);
        }
    }

    /// Closes one connection in the direction `way`, and discards all further data in that direction.
    pub(crate) fn half_close(&self, dice: &mut Dice, way: Way) {
        let mut state = self.shared.state();
        if let Some(id) = state.draw(dice)
            && let Some(connection) = state.connections.get_mut(&id)
        {
            connection.deaf = Some(way);
            close(connection.to(way), Shutdown::Write);
        }
    }

    /// Corrupts the next data in that direction.
    pub(crate) fn harm(&self, dice: &mut Dice, way: Way, harm: Harm) {
        self.shared.state().harm = Some((way, harm, dice.fork()));
    }
}

impl Way {
    fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.begin();
        // This connection wakes the accepting thread, which then ends.
        let _woken = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn relay(self: &Arc<Self>, client: TcpStream) {
        // If the daemon is not running, the connection of the client is closed, as through a tunnel.
        let Ok(daemon) = TcpStream::connect(self.upstream) else {
            return;
        };
        for stream in [&client, &daemon] {
            let _slower_at_worst = stream.set_nodelay(true);
        }
        let (sender, receiver) = match self.direction {
            Direction::Push | Direction::Copy => (Arc::new(client), Arc::new(daemon)),
            Direction::Pull => (Arc::new(daemon), Arc::new(client)),
        };
        let id = {
            let mut state = self.state();
            state.opened += 1;
            let connection = Connection {
                sender: Arc::clone(&sender),
                receiver: Arc::clone(&receiver),
                deaf: None,
            };
            let id = state.opened;
            state.connections.insert(id, connection);
            id
        };
        for (way, from, to) in [
            (Way::Up, &sender, &receiver),
            (Way::Down, &receiver, &sender),
        ] {
            let (shared, from, to) = (Arc::clone(self), Arc::clone(from), Arc::clone(to));
            thread::spawn(move || shared.pump(id, way, &from, &to));
        }
    }

    fn pump(&self, id: u64, way: Way, mut from: &TcpStream, mut to: &TcpStream) {
        let mut room = Vec::new();
        loop {
            room.resize(ROOM_BYTES, 0);
            match from.read(&mut room) {
                // If the other direction is already closed, the end of this one ends the connection.
                Ok(0) if self.is_deaf(id, way.back()) => break,
                Ok(0) => return close(to, Shutdown::Write),
                Ok(read) => room.truncate(read),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_gone) => break,
            }
            self.harm(way, &mut room);
            let mut sent = 0;
            while sent < room.len() {
                let left = room.len() - sent;
                let admitted = if way == Way::Up {
                    self.admit(left)
                } else {
                    left
                };
                if !self.is_deaf(id, way) && to.write_all(&room[sent..sent + admitted]).is_err() {
                    break;
                }
                sent += admitted;
            }
            if sent < room.len() {
                break;
            }
        }
        close(from, Shutdown::Both);
        close(to, Shutdown::Both);
    }

    /// Returns how many of the bytes may pass to the receiver. Waits until it is at least one.
    fn admit(&self, bytes: usize) -> usize {
        let mut state = self.state();
        loop {
            let room = state
                .gate
                .as_ref()
                .map_or(u64::MAX, |gate| gate.at.saturating_sub(state.passed));
            let admitted = bytes.min(usize::try_from(room).unwrap_or(usize::MAX));
            if admitted > 0 {
                state.passed += admitted as u64;
                return admitted;
            }
            if let Some(tell) = state.gate.as_mut().and_then(|gate| gate.tell.take()) {
                tell();
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_deaf(&self, id: u64, way: Way) -> bool {
        self.state()
            .connections
            .get(&id)
            .is_some_and(|connection| connection.deaf == Some(way))
    }

    fn harm(&self, way: Way, bytes: &mut Vec<u8>) {
        let mut state = self.state();
        let Some((_, harm, mut dice)) = state.harm.take_if(|(wanted, ..)| *wanted == way) else {
            return;
        };
        let place = dice.index(bytes.len());
        match harm {
            Harm::Flip => bytes[place] ^= 1 << dice.within(0..=7),
            Harm::Double => {
                let end = place + 1 + dice.index(bytes.len() - place);
                let twice = bytes[place..end].to_vec();
                bytes.splice(end..end, twice);
            }
        }
    }
}

impl State {
    fn draw(&self, dice: &mut Dice) -> Option<u64> {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        (!ids.is_empty()).then(|| *dice.pick(&ids))
    }
}

impl Connection {
    fn to(&self, way: Way) -> &TcpStream {
        match way {
            Way::Up => &self.receiver,
            Way::Down => &self.sender,
        }
    }

    fn cut(&self, how: Cut) {
        for stream in [&self.sender, &self.receiver] {
            // Disconnecting a connected socket sends a reset.
            let reset = how == Cut::Reset && rustix::net::connect_unspec(stream).is_ok();
            if !reset {
                close(stream, Shutdown::Both);
            }
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let connections = self.connections.len();
        f.debug_struct("State")
            .field("passed", &self.passed)
            .field("connections", &connections)
            .finish()
    }
}

fn close(stream: &TcpStream, how: Shutdown) {
    // The stream may have been closed already.
    let _closed = stream.shutdown(how);
}

const ROOM_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns a relay to a listener, and both ends of a connection through it.
    fn connected() -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(listener.local_addr().unwrap(), Direction::Push).unwrap();
        let sender = TcpStream::connect(relay.address()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        (relay, sender, receiver)
    }

    fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
        let mut room = vec![0; bytes];
        stream.read_exact(&mut room).unwrap();
        room
    }

    #[test]
    fn the_gate_holds_at_the_byte_and_opens() {
        let (relay, mut sender, mut receiver) = connected();
        let (told, reached) = mpsc::channel();
        relay.close_gate(5, Box::new(move || told.send(()).unwrap()));
        sender.write_all(b"helloworld").unwrap();
        reached.recv().unwrap();
        assert_eq!(
            (read(&mut receiver, 5), relay.passed()),
            (b"hello".to_vec(), 5)
        );
        receiver.set_nonblocking(true).unwrap();
        assert_eq!(
            receiver.read(&mut [0; 9]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        receiver.set_nonblocking(false).unwrap();
        relay.open_gate();
        assert_eq!(read(&mut receiver, 5), b"world");
    }

    #[test]
    fn one_bit_is_flipped_once() {
        for way in [Way::Up, Way::Down] {
            let (relay, sender, receiver) = connected();
            let (mut from, mut to) = if way == Way::Up {
                (sender, receiver)
            } else {
                (receiver, sender)
            };
            relay.harm(&mut Dice::new(1), way, Harm::Flip);
            let mut wrong = 0;
            for _ in 0..2 {
                from.write_all(&[0; 100]).unwrap();
                wrong += read(&mut to, 100)
                    .iter()
                    .map(|byte| byte.count_ones())
                    .sum::<u32>();
            }
            assert_eq!(wrong, 1);
        }
    }

    #[test]
    fn some_bytes_come_twice_once() {
        for seed in 0..9 {
            let (relay, mut sender, mut receiver) = connected();
            relay.harm(&mut Dice::new(seed), Way::Up, Harm::Double);
            let said: Vec<u8> = (0..100).collect();
            sender.write_all(&said).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
            let mut heard = Vec::new();
            receiver.read_to_end(&mut heard).unwrap();
            let (again, before) = (
                heard.len() - said.len(),
                heard.iter().zip(&said).take_while(|(a, b)| a == b),
            );
            let end = before.count();
            assert!((1..=end).contains(&again), "{heard:?}");
            assert_eq!(heard[end..end + again], said[end - again..end]);
            assert_eq!(heard[end + again..], said[end..]);
        }
    }

    #[test]
    fn what_is_half_closed_goes_on_the_other_way() {
        let (relay, mut sender, mut receiver) = connected();
        sender.write_all(b"a").unwrap();
        assert_eq!(read(&mut receiver, 1), b"a");
        relay.half_close(&mut Dice::new(1), Way::Up);
        assert_eq!(receiver.read(&mut [0]).unwrap(), 0);
        sender.write_all(b"b").unwrap();
        receiver.write_all(b"c").unwrap();
        assert_eq!(read(&mut sender, 1), b"c");
    }

    #[test]
    fn a_reset_is_told_from_an_end() {
        for (how, told) in [
            (Cut::Closed, None),
            (Cut::Reset, Some(ErrorKind::ConnectionReset)),
        ] {
            let (relay, mut sender, mut receiver) = connected();
            sender.write_all(b"a").unwrap();
            assert_eq!(read(&mut receiver, 1), b"a");
            relay.cut_one(&mut Dice::new(1), how);
            assert_eq!(
                sender.read(&mut [0]).map_err(|error| error.kind()).err(),
                told
            );
            // The end of the connection may have been forwarded before the reset.
            assert!(matches!(
                receiver.read(&mut [0]).map_err(|error| error.kind()),
                Ok(0) | Err(ErrorKind::ConnectionReset)
            ));
        }
    }
}
