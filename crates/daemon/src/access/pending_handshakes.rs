//! Connections that have not proved a key: only so many shake hands at once, and the others queue. A connection that
//! sends nothing blocks nobody, because it is closed for one that waits.
//!
//! A network is an IPv4 address or an IPv6 /48; within a /48 the hosts (/64) are treated as networks are.
//! Connections queue here and not in the kernel, where their origin cannot be seen. A flood from one network closes and
//! delays that network's own connections, and costs others a round trip at worst: while there are many, a QUIC client
//! has to show that its address is its own.
//!
//! **Invariant:** a network above its [fair share](Connections::fair_share) has a connection of its own closed at once
//! for one of another network. Where none is above it, only connections slower than an honest client are closed, silent
//! ones first. The next from the queue is one of the network with the fewest connections, however many others wait.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use zmove_receiver::files_of_process;
use zmove_types::Lock;

/// The connections of one daemon that have not proved a key; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingHandshakes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    connections: Lock<Connections>,
    /// Notified when a connection has been queued.
    waits: Notify,
}

#[derive(Debug, Default)]
struct Connections {
    entered: u64,
    max: usize,
    /// Connections whose handshake is under way, the oldest first.
    members: VecDeque<Member>,
    counts: NetworkCounts,
    queue: Queue,
}

#[derive(Debug)]
struct Member {
    number: u64,
    source: Networks,
    since: Instant,
    /// Whether the client has sent its first message.
    spoken: bool,
    /// The drop of this sender notifies the handshake that it has lost its place.
    _stays: oneshot::Sender<()>,
}

/// Connections whose handshake waits to begin, by site, the oldest first.
#[derive(Debug, Default)]
struct Queue {
    sites: HashMap<IpAddr, VecDeque<Queued>>,
    len: usize,
    entered: u64,
}

#[derive(Debug)]
struct Queued {
    number: u64,
    source: Networks,
    /// The sender of the connection's place; dropped unused where there is no room.
    begins: oneshot::Sender<Place>,
}

/// The networks of a connection: of IPv6 the /48 of its site and the /64 of its host; of IPv4 the address for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Networks {
    site: IpAddr,
    host: IpAddr,
}

/// The number of members of each network.
#[derive(Debug, Default)]
struct NetworkCounts {
    sites: HashMap<IpAddr, usize>,
    hosts: HashMap<IpAddr, usize>,
}

/// A connection's place among those that shake hands; free when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pending: PendingHandshakes,
    number: u64,
    stays: oneshot::Receiver<()>,
}

/// The most connections in the queue; each costs what it would in the kernel's queue, and a task.
const QUEUED_MAX: usize = 1024;
/// Queued connections may use one in so many of the process's descriptors.
const QUEUED_SHARE: usize = 8;
/// The most handshakes that begin under one lock.
const BEGIN_AT_ONCE: usize = 16;
/// The longest silence of a client that has connected: an honest one sends its first message at once.
const SILENCE_MAX: Duration = Duration::from_millis(100);
/// The longest handshake: a round trip, and some CPU time on both sides, of which there may be little.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// The longest handshake while a connection waits whose network has fewer under way: clients that stall must not hold
/// up others.
const HANDSHAKE_ASKED_MAX: Duration = Duration::from_secs(1);
/// The least fair share of a network: the lanes that several pushes dial at once.
const FAIR_SHARE_MIN: usize = 32;
/// How often overdue handshakes are looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl PendingHandshakes {
    /// The number of connections, with those in the queue.
    pub(crate) fn count(&self) -> usize {
        let connections = self.0.connections.lock();
        connections.members.len() + connections.queue.len
    }

    /// Queues one more connection, where `max` may shake hands at once. Its place comes when its handshake may begin,
    /// or never.
    pub(crate) fn enter(&self, address: IpAddr, max: usize) -> oneshot::Receiver<Place> {
        let (begins, place) = oneshot::channel();
        let source = Networks::of(address);
        let mut connections = self.0.connections.lock();
        connections.max = max.max(1);
        connections.queue.push(source, begins);
        drop(connections);
        self.begin_those_that_can();
        let mut connections = self.0.connections.lock();
        if connections.queue.len > QUEUED_MAX.min(files_of_process() / QUEUED_SHARE) {
            connections.queue.send_away();
        }
        if connections.queue.len > 0 {
            self.0.waits.notify_one();
        }
        drop(connections);
        place
    }

    /// While connections queue, has those closed whose handshake takes too long. Never ends.
    pub(crate) async fn keep_moving(&self) {
        loop {
            self.0.waits.notified().await;
            while self.0.connections.lock().queue.len > 0 {
                tokio::time::sleep(LOOK_INTERVAL).await;
                self.begin_those_that_can();
            }
        }
    }

    fn begin_those_that_can(&self) {
        loop {
            let mut connections = self.0.connections.lock();
            // Few at a time, because the time limit of each handshake runs from here.
            let next = std::iter::from_fn(|| {
                let queued = connections.next(Instant::now())?;
                Some(connections.admit(queued, self.clone()))
            });
            let beginning: Vec<_> = next.take(BEGIN_AT_ONCE).collect();
            drop(connections);
            if beginning.is_empty() {
                return;
            }
            for (place, begins) in beginning {
                // Where nobody waits for the place any more, it is dropped here, and with that free again.
                drop(begins.send(place));
            }
        }
    }
}

impl Connections {
    /// The next connection to shake hands, for which there is room now: the oldest of the host with the fewest members
    /// in the site with the fewest. Where no member is closed for that one, none is closed for another.
    fn next(&mut self, now: Instant) -> Option<Queued> {
        let (source, place) = self.queue.first(&self.counts)?;
        while self.members.len() >= self.max {
            let victim = self.victim(source, now)?;
            self.remove(victim);
        }
        self.queue.remove(source.site, place)
    }

    fn admit(
        &mut self,
        queued: Queued,
        pending: PendingHandshakes,
    ) -> (Place, oneshot::Sender<Place>) {
        let Queued { source, begins, .. } = queued;
        let (stays_in, stays) = oneshot::channel();
        self.entered += 1;
        let number = self.entered;
        self.counts.add(source);
        self.members.push_back(Member {
            number,
            source,
            since: Instant::now(),
            spoken: false,
            _stays: stays_in,
        });
        let place = Place {
            pending,
            number,
            stays,
        };
        (place, begins)
    }

    fn remove(&mut self, place: usize) {
        if let Some(member) = self.members.remove(place) {
            self.counts.subtract(member.source);
        }
    }

    /// The member to close for `newcomer`, if one is late: of the network with the most members where that is above its
    /// share, else of any. Members of a host above the share go first, then silent ones, then the oldest.
    fn victim(&self, newcomer: Networks, now: Instant) -> Option<usize> {
        let share = self.fair_share(newcomer);
        let most = self.counts.sites.values().max().copied()?;
        let goes = |member: &Member| {
            (most <= share || self.counts.site(member.source) == most)
                && member.is_late(now, self.counts.more_than(newcomer, member.source), share)
        };
        let going = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| goes(member));
        let first = |(place, member): &(usize, &Member)| {
            let beyond = self.counts.host(member.source).saturating_sub(share);
            (Reverse(beyond), member.spoken, *place)
        };
        going.min_by_key(first).map(|(place, _)| place)
    }

    /// The most members that a network may have before one is closed at once for a connection of another network.
    fn fair_share(&self, newcomer: Networks) -> usize {
        let sites = self.counts.sites.len() + usize::from(self.counts.site(newcomer) == 0);
        FAIR_SHARE_MIN.min(self.max / 2).max(self.max / sites)
    }
}

impl Queue {
    fn push(&mut self, source: Networks, begins: oneshot::Sender<Place>) {
        self.entered += 1;
        self.len += 1;
        let queued = Queued {
            number: self.entered,
            source,
            begins,
        };
        self.sites.entry(source.site).or_default().push_back(queued);
    }

    /// The connection whose turn is next with these members, and its place in the queue of its site.
    fn first(&self, counts: &NetworkCounts) -> Option<(Networks, usize)> {
        let members = |site: &IpAddr| counts.sites.get(site).copied().unwrap_or(0);
        let oldest = |waiting: &VecDeque<Queued>| waiting.front().map(|queued| queued.number);
        let (site, waiting) = self
            .sites
            .iter()
            .min_by_key(|(site, waiting)| (members(site), oldest(waiting)))?;
        // A site of IPv4 is one host: its oldest connection is the next.
        let several = if site.is_ipv6() { waiting.len() } else { 1 };
        let hosts = waiting.iter().take(several).enumerate();
        let (place, queued) = hosts.min_by_key(|(_, queued)| counts.host(queued.source))?;
        Some((queued.source, place))
    }

    fn remove(&mut self, site: IpAddr, place: usize) -> Option<Queued> {
        let Entry::Occupied(mut waiting) = self.sites.entry(site) else {
            return None;
        };
        let removed = waiting.get_mut().remove(place);
        self.len -= usize::from(removed.is_some());
        if waiting.get().is_empty() {
            waiting.remove();
        }
        removed
    }

    /// Closes the youngest connection of the network with the most in the queue: those before it keep their turn.
    fn send_away(&mut self) {
        let youngest = |waiting: &VecDeque<Queued>| waiting.back().map(|queued| queued.number);
        let most = self
            .sites
            .iter()
            .max_by_key(|(_, waiting)| (waiting.len(), youngest(waiting)));
        if let Some((site, place)) = most.map(|(site, waiting)| (*site, waiting.len() - 1)) {
            drop(self.remove(site, place));
        }
    }
}

impl NetworkCounts {
    fn add(&mut self, source: Networks) {
        *self.sites.entry(source.site).or_default() += 1;
        *self.hosts.entry(source.host).or_default() += 1;
    }

    fn subtract(&mut self, source: Networks) {
        for (counts, network) in [
            (&mut self.sites, source.site),
            (&mut self.hosts, source.host),
        ] {
            if let Entry::Occupied(mut count) = counts.entry(network) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    fn site(&self, source: Networks) -> usize {
        self.sites.get(&source.site).copied().unwrap_or(0)
    }

    fn host(&self, source: Networks) -> usize {
        self.hosts.get(&source.host).copied().unwrap_or(0)
    }

    /// The numbers of members of the networks of `one` and `other`, if the latter has more. Within a site the hosts
    /// count.
    fn more_than(&self, one: Networks, other: Networks) -> Option<(usize, usize)> {
        let (own, others) = if one.site == other.site {
            (self.host(one), self.host(other))
        } else {
            (self.site(one), self.site(other))
        };
        (own < others).then_some((own, others))
    }
}

impl Member {
    /// Whether the handshake has taken longer than that of an honest client. `more` holds the numbers of members of the
    /// newcomer's network and of this one, where this one has more.
    fn is_late(&self, now: Instant, more: Option<(usize, usize)>, share: usize) -> bool {
        let longest = match more {
            Some((_, own)) if own > share => Duration::ZERO,
            _ if !self.spoken => SILENCE_MAX,
            // Not where the difference is one: the two networks would only swap places, without end.
            Some((others, own)) if others == 0 || others + 1 < own => HANDSHAKE_ASKED_MAX,
            _ => HANDSHAKE_MAX,
        };
        now.saturating_duration_since(self.since) >= longest
    }
}

impl Place {
    /// A callback that records that the client has sent its first message.
    pub(crate) fn has_spoken(&self) -> impl FnOnce() + Send + 'static {
        let pending = self.pending.clone();
        let number = self.number;
        move || {
            for member in &mut pending.0.connections.lock().members {
                member.spoken |= member.number == number;
            }
        }
    }

    /// Resolves when the place is needed for another connection.
    pub(crate) async fn taken(&mut self) {
        // Nothing is ever sent: this resolves when the sender is dropped.
        let _dropped = (&mut self.stays).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut connections = self.pending.0.connections.lock();
        if let Some(place) = connections
            .members
            .iter()
            .position(|member| member.number == self.number)
        {
            connections.remove(place);
        }
        drop(connections);
        self.pending.begin_those_that_can();
    }
}

impl Networks {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                let network = |d| Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into();
                Self {
                    site: network(0),
                    host: network(d),
                }
            }
            address @ IpAddr::V4(_) => Self {
                site: address,
                host: address,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    async fn is_taken(place: &mut Place) -> bool {
        tokio::select! {
            biased;
            () = place.taken() => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Lets so much time pass, and begins what that allows.
    async fn wait(pending: &PendingHandshakes, time: Duration) {
        tokio::time::advance(time).await;
        pending.begin_those_that_can();
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_most_makes_room() {
        let pending = PendingHandshakes::default();
        let [one, many] = ["192.0.2.1", "192.0.2.2"].map(address);
        let mut first = pending.enter(one, 3).try_recv().unwrap();
        let mut second = pending.enter(many, 3).try_recv().unwrap();
        let mut third = pending.enter(many, 3).try_recv().unwrap();
        let mut fourth = pending.enter(one, 3).try_recv().unwrap();
        assert_eq!(pending.count(), 3);
        assert!(is_taken(&mut second).await);
        assert!(
            !is_taken(&mut first).await
                && !is_taken(&mut third).await
                && !is_taken(&mut fourth).await
        );
        drop((first, second, third, fourth));
        assert_eq!(pending.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_one_address_wait_for_each_other() {
        let pending = PendingHandshakes::default();
        let host = address("192.0.2.1");
        let enter = || pending.enter(host, 2);
        let [mut first, second] = [enter(), enter()].map(|mut place| place.try_recv().unwrap());
        let [mut third, mut fourth] = [enter(), enter()];
        assert!(third.try_recv().is_err() && !is_taken(&mut first).await);
        drop(second);
        let third = third.try_recv().unwrap();
        assert!(fourth.try_recv().is_err());
        drop((first, third));
        fourth.try_recv().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silent_handshakes_are_evicted_before_stalled_ones() {
        let pending = PendingHandshakes::default();
        let host = address("192.0.2.1");
        let enter = || pending.enter(host, 2);
        let [mut spoken, mut silent] =
            [enter(), enter()].map(|mut place| place.try_recv().unwrap());
        spoken.has_spoken()();
        let [mut third, mut fourth] = [enter(), enter()];
        assert!(third.try_recv().is_err());
        wait(&pending, SILENCE_MAX).await;
        assert!(is_taken(&mut silent).await && !is_taken(&mut spoken).await);
        let third = third.try_recv().unwrap();
        third.has_spoken()();
        assert!(fourth.try_recv().is_err());
        wait(&pending, HANDSHAKE_MAX).await;
        assert!(is_taken(&mut spoken).await);
        fourth.try_recv().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_another_address_passes_it() {
        let pending = PendingHandshakes::default();
        let [one, many] = ["192.0.2.1", "192.0.2.2"].map(address);
        let _members = [(); 2].map(|()| pending.enter(many, 2).try_recv().unwrap());
        let mut queued: Vec<_> = (0..=QUEUED_MAX).map(|_| pending.enter(many, 2)).collect();
        let closed = |place: &mut oneshot::Receiver<Place>| {
            matches!(place.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        assert_eq!(
            queued
                .iter_mut()
                .filter_map(|place| closed(place).then_some(()))
                .count(),
            1
        );
        assert!(
            closed(queued.last_mut().unwrap()),
            "those before it keep their turn"
        );
        pending.enter(one, 2).try_recv().unwrap();
    }

    /// Asserts that a client keeps all the lanes that it dials at once, while another client has a new address for each
    /// connection.
    async fn assert_kept(addresses: impl Iterator<Item = String>) {
        let pending = PendingHandshakes::default();
        let client = address("2001:db8:1::1");
        let mut all = Vec::new();
        let mut lanes: Vec<_> = (0..12).map(|_| pending.enter(client, 64)).collect();
        let mut lanes: Vec<_> = lanes
            .iter_mut()
            .map(|lane| lane.try_recv().unwrap())
            .collect();
        all.extend(addresses.map(|of| pending.enter(address(&of), 64)));
        for _ in 0..4 {
            // Others are closed, however many connections the client has by then.
            wait(&pending, SILENCE_MAX).await;
            lanes.iter().for_each(|lane| lane.has_spoken()());
            all.push(pending.enter(client, 64));
            lanes.push(
                all.pop()
                    .unwrap()
                    .try_recv()
                    .expect("a silent one makes room"),
            );
        }
        for lane in &mut lanes {
            assert!(!is_taken(lane).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_a_network_for_each_connection_evicts_nobody() {
        assert_kept((0..52).map(|number| format!("2001:db8:{:x}::1", 0x100 + number))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_networks_of_a_site_count_together() {
        let pending = PendingHandshakes::default();
        let [mut hers, mut others] = [Vec::new(), Vec::new()];
        let host = |number: usize| address(&format!("2001:db8:2:{number:x}::1"));
        for number in 0..256 {
            others.push(pending.enter(host(number), 256).try_recv().unwrap());
        }
        others[0].has_spoken()();
        for _ in 0..12 {
            hers.push(
                pending
                    .enter(address("2001:db8:1::1"), 256)
                    .try_recv()
                    .expect("at once"),
            );
        }
        let mut next = pending.enter(host(300), 256);
        assert!(next.try_recv().is_err(), "it waits for its own");
        for hers in &mut hers {
            assert!(!is_taken(hers).await);
        }
        assert!(
            !is_taken(&mut others[0]).await && is_taken(&mut others[1]).await,
            "the silent go first"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_spoken_and_stall_make_room_for_who_has_fewer() {
        let pending = PendingHandshakes::default();
        let source = |number: usize| address(&format!("192.0.2.{}", number % 8));
        let mut stalling: Vec<_> = (0..64)
            .map(|number| pending.enter(source(number), 64).try_recv().unwrap())
            .collect();
        stalling.iter().for_each(|place| place.has_spoken()());
        let mut client = pending.enter(address("192.0.2.100"), 64);
        assert!(
            client.try_recv().is_err(),
            "nobody has more than a fair share"
        );
        wait(&pending, HANDSHAKE_ASKED_MAX).await;
        let mut client = client.try_recv().unwrap();
        assert!(is_taken(&mut stalling[0]).await && !is_taken(&mut stalling[1]).await);
        assert!(!is_taken(&mut client).await);
    }

    /// Queued connections of the same few networks do not delay a newcomer until all of them have had their turn.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_passes_a_queue_of_those_that_stall() {
        let pending = PendingHandshakes::default();
        let source = |number: usize| address(&format!("192.0.2.{}", number % 8));
        let stalling: Vec<_> = (0..256)
            .map(|number| pending.enter(source(number), 256).try_recv().unwrap())
            .collect();
        stalling.iter().for_each(|place| place.has_spoken()());
        let mut queued: Vec<_> = (0..QUEUED_MAX)
            .map(|number| pending.enter(source(number), 256))
            .collect();
        let [mut client, mut second] =
            ["2001:db8:1:1::1", "2001:db8:1:2::1"].map(|text| pending.enter(address(text), 256));
        assert!(
            client.try_recv().is_err(),
            "nobody has more than a fair share"
        );
        wait(&pending, HANDSHAKE_ASKED_MAX).await;
        let mut client = client.try_recv().unwrap();
        let mut second = second.try_recv().unwrap();
        assert!(!is_taken(&mut client).await && !is_taken(&mut second).await);
        let began = queued
            .iter_mut()
            .filter_map(|place| place.try_recv().ok())
            .count();
        assert_eq!(began, 0, "they do not take turns with their like");
        let third = pending.enter(address("192.0.2.100"), 256).try_recv();
        assert!(third.is_ok(), "there are others that have had their time");
    }

    #[test]
    fn a_network_of_ipv6_is_one_host_and_several_are_one_site() {
        let [first, second, near, far] = [
            "2001:db8::1",
            "2001:db8::2:3:4:5",
            "2001:db8:0:1::1",
            "2001:db8:1::1",
        ]
        .map(|text| Networks::of(address(text)));
        assert_eq!(first, second);
        assert!(near.site == first.site && near.host != first.host && far.site != first.site);
        let v4 = address("192.0.2.1");
        assert_eq!(
            Networks::of(address("::ffff:192.0.2.1")),
            Networks { site: v4, host: v4 }
        );
    }
}
