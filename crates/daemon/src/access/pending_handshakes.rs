//! Connections that have not proved a key. The number of concurrent handshakes is limited, and further connections are
//! queued. A connection that sends nothing blocks no other connection, because it is closed in favor of a queued one.
//!
//! A network is an IPv4 address or an IPv6 /48. The hosts (/64) in one /48 share the slots of their network in the same
//! way as networks share the slots of the daemon. Connections are queued here and not in the kernel, because their
//! origin is not visible there. A flood from one network closes and delays only that network's connections. Other
//! clients lose at most one round trip: while many handshakes are pending, a QUIC client must prove that it owns its
//! address.
//!
//! **Invariant:** if a network exceeds its [fair share](Connections::fair_share), one of its connections is closed
//! immediately in favor of a connection from another network. If no network exceeds it, only connections that are
//! slower than an honest client are closed, silent ones first. The next connection taken from the queue belongs to the
//! network with the fewest handshakes in progress. The number of connections that other networks have queued does not
//! matter.

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

/// The connections of one daemon that have not proved a key. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingHandshakes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    connections: Lock<Connections>,
    /// Notified when a connection is queued.
    waits: Notify,
}

#[derive(Debug, Default)]
struct Connections {
    entered: u64,
    max: usize,
    /// Connections with a handshake in progress, oldest first.
    members: VecDeque<ActiveHandshake>,
    counts: NetworkCounts,
    queue: Queue,
}

#[derive(Debug)]
struct ActiveHandshake {
    number: u64,
    source: Networks,
    since: Instant,
    /// Whether the client has sent its first message.
    has_sent: bool,
    /// Dropping this sender notifies the handshake that its slot is lost.
    _eviction: oneshot::Sender<()>,
}

/// Connections that wait for their handshake to begin, by site, oldest first.
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
    /// Sends the connection its slot. If no slot becomes free, this sender is dropped unused.
    begins: oneshot::Sender<HandshakeSlot>,
}

/// The two networks that a connection belongs to. For IPv6, these are the /48 of the site and the /64 of the host. For
/// IPv4, both are the address itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Networks {
    site: IpAddr,
    host: IpAddr,
}

/// Number of handshakes in progress per network.
#[derive(Debug, Default)]
struct NetworkCounts {
    sites: HashMap<IpAddr, usize>,
    hosts: HashMap<IpAddr, usize>,
}

/// A slot for one handshake. Dropping this value frees the slot.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    pending: PendingHandshakes,
    number: u64,
    eviction: oneshot::Receiver<()>,
}

/// Maximum number of queued connections. Each of them uses as much memory as it would in the kernel's queue, plus the
/// memory of a task.
const QUEUED_MAX: usize = 1024;
/// Divisor for the process's descriptor limit. Queued connections use at most this fraction of the descriptors.
const QUEUED_SHARE: usize = 8;
/// Maximum number of handshakes that begin under one lock.
const BEGIN_AT_ONCE: usize = 16;
/// Maximum time between the start of a handshake and the client's first message. An honest client sends this message
/// immediately.
const SILENCE_MAX: Duration = Duration::from_millis(100);
/// Maximum duration of a handshake: a round trip and some CPU time on both sides, which may be scarce.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Maximum duration of a handshake while a connection from a network with fewer handshakes in progress is queued.
/// Clients that stall must not delay others.
const CONTENDED_HANDSHAKE_MAX: Duration = Duration::from_secs(1);
/// Minimum fair share of a network: the number of lanes that several pushes dial concurrently.
const FAIR_SHARE_MIN: usize = 32;
/// Interval of the check for overdue handshakes.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl PendingHandshakes {
    /// Returns the number of connections, including queued ones.
    pub(crate) fn count(&self) -> usize {
        let connections = self.0.connections.lock();
        connections.members.len() + connections.queue.len
    }

    /// Queues a connection. At most `max` handshakes run concurrently. The returned channel receives the slot when the
    /// handshake may begin. If the connection is rejected, the channel is closed without sending a slot.
    pub(crate) fn enter(&self, address: IpAddr, max: usize) -> oneshot::Receiver<HandshakeSlot> {
        let (begins, place) = oneshot::channel();
        let source = Networks::of(address);
        let mut connections = self.0.connections.lock();
        connections.max = max.max(1);
        connections.queue.push(source, begins);
        drop(connections);
        self.start_ready_handshakes();
        let mut connections = self.0.connections.lock();
        if connections.queue.len > QUEUED_MAX.min(files_of_process() / QUEUED_SHARE) {
            connections.queue.evict_newest();
        }
        if connections.queue.len > 0 {
            self.0.waits.notify_one();
        }
        drop(connections);
        place
    }

    /// Closes handshakes that take too long while connections are queued. Never returns.
    pub(crate) async fn evict_late_handshakes(&self) {
        loop {
            self.0.waits.notified().await;
            while self.0.connections.lock().queue.len > 0 {
                tokio::time::sleep(CHECK_INTERVAL).await;
                self.start_ready_handshakes();
            }
        }
    }

    fn start_ready_handshakes(&self) {
        loop {
            let mut connections = self.0.connections.lock();
            // The time limit of each handshake starts here, so only a small batch is started at a time.
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
                // If the receiver was dropped, the slot is dropped here and thereby freed.
                drop(begins.send(place));
            }
        }
    }
}

impl Connections {
    /// Returns the next connection that can begin its handshake now. It is the oldest queued connection of the host
    /// with the fewest handshakes, in the site with the fewest handshakes. If no handshake can be closed in favor of
    /// this connection, returns `None` without trying any other connection.
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
    ) -> (HandshakeSlot, oneshot::Sender<HandshakeSlot>) {
        let Queued { source, begins, .. } = queued;
        let (stays_in, eviction) = oneshot::channel();
        self.entered += 1;
        let number = self.entered;
        self.counts.add(source);
        self.members.push_back(ActiveHandshake {
            number,
            source,
            since: Instant::now(),
            has_sent: false,
            _eviction: stays_in,
        });
        let place = HandshakeSlot {
            pending,
            number,
            eviction,
        };
        (place, begins)
    }

    fn remove(&mut self, place: usize) {
        if let Some(member) = self.members.remove(place) {
            self.counts.subtract(member.source);
        }
    }

    /// Returns the handshake to close in favor of `newcomer`, or `None` if no handshake is late. If the largest network
    /// exceeds its share, the handshake belongs to that network. Handshakes of a host above the share are closed first,
    /// then silent ones, then the oldest.
    fn victim(&self, newcomer: Networks, now: Instant) -> Option<usize> {
        let share = self.fair_share(newcomer);
        let most = self.counts.sites.values().max().copied()?;
        let goes = |member: &ActiveHandshake| {
            (most <= share || self.counts.site(member.source) == most)
                && member.is_late(now, self.counts.more_than(newcomer, member.source), share)
        };
        let going = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| goes(member));
        let first = |(place, member): &(usize, &ActiveHandshake)| {
            let beyond = self.counts.host(member.source).saturating_sub(share);
            (Reverse(beyond), member.has_sent, *place)
        };
        going.min_by_key(first).map(|(place, _)| place)
    }

    /// Returns the maximum number of handshakes of one network. Above this number, a handshake of the network is closed
    /// immediately when a connection of another network is queued.
    fn fair_share(&self, newcomer: Networks) -> usize {
        let sites = self.counts.sites.len() + usize::from(self.counts.site(newcomer) == 0);
        FAIR_SHARE_MIN.min(self.max / 2).max(self.max / sites)
    }
}

impl Queue {
    fn push(&mut self, source: Networks, begins: oneshot::Sender<HandshakeSlot>) {
        self.entered += 1;
        self.len += 1;
        let queued = Queued {
            number: self.entered,
            source,
            begins,
        };
        self.sites.entry(source.site).or_default().push_back(queued);
    }

    /// Returns the queued connection to begin next, given the handshakes in progress, and the index of that connection
    /// in the queue of its site.
    fn first(&self, counts: &NetworkCounts) -> Option<(Networks, usize)> {
        let members = |site: &IpAddr| counts.sites.get(site).copied().unwrap_or(0);
        let oldest = |waiting: &VecDeque<Queued>| waiting.front().map(|queued| queued.number);
        let (site, waiting) = self
            .sites
            .iter()
            .min_by_key(|(site, waiting)| (members(site), oldest(waiting)))?;
        // An IPv4 site is a single host, so its oldest connection is the next.
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

    /// Closes the newest connection of the network with the most queued connections. Connections ahead of it keep their
    /// positions.
    fn evict_newest(&mut self) {
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

    /// Compares the numbers of handshakes of the networks of `one` and `other`. Returns both numbers if the number of
    /// `other` is larger. If both connections belong to one site, their hosts are compared instead of their sites.
    fn more_than(&self, one: Networks, other: Networks) -> Option<(usize, usize)> {
        let (own, others) = if one.site == other.site {
            (self.host(one), self.host(other))
        } else {
            (self.site(one), self.site(other))
        };
        (own < others).then_some((own, others))
    }
}

impl ActiveHandshake {
    /// Returns whether the handshake takes longer than an honest client needs. If the network of this handshake has
    /// more handshakes than the newcomer's network, `more` holds both numbers, the newcomer's first.
    fn is_late(&self, now: Instant, more: Option<(usize, usize)>, share: usize) -> bool {
        let longest = match more {
            Some((_, own)) if own > share => Duration::ZERO,
            _ if !self.has_sent => SILENCE_MAX,
            // A difference of one is ignored. Otherwise, connections of the two networks would replace each other
            // forever.
            Some((others, own)) if others == 0 || others + 1 < own => CONTENDED_HANDSHAKE_MAX,
            _ => HANDSHAKE_MAX,
        };
        now.saturating_duration_since(self.since) >= longest
    }
}

impl HandshakeSlot {
    /// Returns a callback that records that the client has sent its first message.
    pub(crate) fn on_first_message(&self) -> impl FnOnce() + Send + 'static {
        let pending = self.pending.clone();
        let number = self.number;
        move || {
            for member in &mut pending.0.connections.lock().members {
                member.has_sent |= member.number == number;
            }
        }
    }

    /// Resolves when the slot is needed for another connection.
    pub(crate) async fn evicted(&mut self) {
        // Nothing is ever sent. This resolves when the sender is dropped.
        let _dropped = (&mut self.eviction).await;
    }
}

impl Drop for HandshakeSlot {
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
        self.pending.start_ready_handshakes();
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

    async fn is_taken(place: &mut HandshakeSlot) -> bool {
        tokio::select! {
            biased;
            () = place.evicted() => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Advances the clock by `time` and begins the handshakes that can then begin.
    async fn wait(pending: &PendingHandshakes, time: Duration) {
        tokio::time::advance(time).await;
        pending.start_ready_handshakes();
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
        let [mut has_sent, mut silent] =
            [enter(), enter()].map(|mut place| place.try_recv().unwrap());
        has_sent.on_first_message()();
        let [mut third, mut fourth] = [enter(), enter()];
        assert!(third.try_recv().is_err());
        wait(&pending, SILENCE_MAX).await;
        assert!(is_taken(&mut silent).await && !is_taken(&mut has_sent).await);
        let third = third.try_recv().unwrap();
        third.on_first_message()();
        assert!(fourth.try_recv().is_err());
        wait(&pending, HANDSHAKE_MAX).await;
        assert!(is_taken(&mut has_sent).await);
        fourth.try_recv().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_another_address_passes_it() {
        let pending = PendingHandshakes::default();
        let [one, many] = ["192.0.2.1", "192.0.2.2"].map(address);
        let _members = [(); 2].map(|()| pending.enter(many, 2).try_recv().unwrap());
        let mut queued: Vec<_> = (0..=QUEUED_MAX).map(|_| pending.enter(many, 2)).collect();
        let closed = |place: &mut oneshot::Receiver<HandshakeSlot>| {
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

    /// Asserts that a client keeps all the lanes that it dials together, while another client uses a new address for
    /// each connection.
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
            // The connections of the other client are closed, even though this client has many connections at that
            // time.
            wait(&pending, SILENCE_MAX).await;
            lanes.iter().for_each(|lane| lane.on_first_message()());
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
        others[0].on_first_message()();
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
        stalling.iter().for_each(|place| place.on_first_message()());
        let mut client = pending.enter(address("192.0.2.100"), 64);
        assert!(
            client.try_recv().is_err(),
            "nobody has more than a fair share"
        );
        wait(&pending, CONTENDED_HANDSHAKE_MAX).await;
        let mut client = client.try_recv().unwrap();
        assert!(is_taken(&mut stalling[0]).await && !is_taken(&mut stalling[1]).await);
        assert!(!is_taken(&mut client).await);
    }

    /// Queued connections of a few networks do not delay a new network until all of them have been served.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_passes_a_queue_of_those_that_stall() {
        let pending = PendingHandshakes::default();
        let source = |number: usize| address(&format!("192.0.2.{}", number % 8));
        let stalling: Vec<_> = (0..256)
            .map(|number| pending.enter(source(number), 256).try_recv().unwrap())
            .collect();
        stalling.iter().for_each(|place| place.on_first_message()());
        let mut queued: Vec<_> = (0..QUEUED_MAX)
            .map(|number| pending.enter(source(number), 256))
            .collect();
        let [mut client, mut second] =
            ["2001:db8:1:1::1", "2001:db8:1:2::1"].map(|text| pending.enter(address(text), 256));
        assert!(
            client.try_recv().is_err(),
            "nobody has more than a fair share"
        );
        wait(&pending, CONTENDED_HANDSHAKE_MAX).await;
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
