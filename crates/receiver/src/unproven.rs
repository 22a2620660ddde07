//! The connections that have not proved a key: few are at it at once, more wait for their turn, and so that somebody who says
//! nothing keeps nobody waiting, others go for them.
//!
//! **Invariant:** who goes is of the address that has most, so that a host that opens many closes its own. One that has begun goes
//! at once for another address, and for its own only when it has been idle for longer than a client that means it.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

/// The connections of one daemon that have not proved a key; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unproven(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    crowd: Mutex<Crowd>,
    /// Somebody has begun to wait.
    waits: Notify,
}

#[derive(Debug, Default)]
struct Crowd {
    entered: u64,
    max: usize,
    /// Those that prove, the oldest first.
    members: VecDeque<Member>,
    /// Those that wait to begin, the oldest first.
    queue: VecDeque<Queued>,
}

#[derive(Debug)]
struct Member {
    number: u64,
    source: IpAddr,
    since: Instant,
    /// It has said what a client says first.
    spoken: bool,
    /// Tells by being dropped.
    _stays: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Queued {
    source: IpAddr,
    /// Tells by being dropped that there is no room.
    begins: oneshot::Sender<Place>,
}

/// A connection's place among those that prove; free when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    unproven: Unproven,
    number: u64,
    stays: oneshot::Receiver<()>,
}

/// How many connections may wait to begin; each costs what it would in the kernel's queue, and a task.
const QUEUED_MAX: usize = 1024;
/// A client's first words follow its connection at once.
const SILENCE_MAX: Duration = Duration::from_millis(100);
/// The rest of a handshake takes a round trip and some CPU time on both sides, of which there may be little.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How often it is seen who has taken too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl Unproven {
    /// How many there are, with those that wait.
    pub(crate) fn count(&self) -> usize {
        let crowd = self.crowd();
        crowd.members.len() + crowd.queue.len()
    }

    /// Enters one more, where `max` may prove at once. Its place comes when it may begin, or never.
    pub(crate) fn enter(&self, address: IpAddr, max: usize) -> oneshot::Receiver<Place> {
        let (begins, place) = oneshot::channel();
        let source = network(address);
        let mut crowd = self.crowd();
        crowd.max = max.max(1);
        if crowd.can_evict_for(source) {
            // it need not wait behind those of others
            crowd.queue.push_front(Queued { source, begins });
        } else {
            crowd.queue.push_back(Queued { source, begins });
        }
        drop(crowd);
        self.begin_those_that_can();
        let mut crowd = self.crowd();
        if crowd.queue.len() > QUEUED_MAX {
            crowd.send_away();
        }
        if !crowd.queue.is_empty() {
            self.0.waits.notify_one();
        }
        drop(crowd);
        place
    }

    /// While some wait, sees to it that those who take too long make room. Never ends.
    pub(crate) async fn keep_moving(&self) {
        loop {
            self.0.waits.notified().await;
            while !self.crowd().queue.is_empty() {
                tokio::time::sleep(LOOK_INTERVAL).await;
                self.begin_those_that_can();
            }
        }
    }

    fn begin_those_that_can(&self) {
        let mut beginning = Vec::new();
        let mut crowd = self.crowd();
        while let Some(queued) = crowd.next(Instant::now()) {
            let (place, begins) = crowd.admit(queued, self.clone());
            beginning.push((begins, place));
        }
        drop(crowd);
        for (begins, place) in beginning {
            // the place of one that nobody waits for any more is free again
            drop(begins.send(place));
        }
    }

    fn crowd(&self) -> MutexGuard<'_, Crowd> {
        self.0.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Crowd {
    /// The next to begin, for whom there is room now.
    fn next(&mut self, now: Instant) -> Option<Queued> {
        let source = self.queue.front()?.source;
        while self.members.len() >= self.max {
            let most = self.most()?;
            let at_once = self.count(source) < self.count(most);
            let goes = |member: &Member| member.source == most && (at_once || member.is_late(now));
            let victim = self.members.iter().position(goes)?;
            self.members.remove(victim);
        }
        self.queue.pop_front()
    }

    fn admit(&mut self, queued: Queued, unproven: Unproven) -> (Place, oneshot::Sender<Place>) {
        let Queued { source, begins } = queued;
        let (stays_in, stays) = oneshot::channel();
        self.entered += 1;
        let number = self.entered;
        let since = Instant::now();
        self.members.push_back(Member { number, source, since, spoken: false, _stays: stays_in });
        (Place { unproven, number, stays }, begins)
    }

    /// Whether others go at once for one from there.
    fn can_evict_for(&self, source: IpAddr) -> bool {
        self.most().is_some_and(|most| self.count(source) < self.count(most))
    }

    /// Who has most members; of several the one with the oldest.
    fn most(&self) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for member in &self.members {
            *counts.entry(member.source).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let mut sources = self.members.iter().map(|member| member.source);
        sources.find(|source| counts.get(source) == Some(&most))
    }

    fn count(&self, source: IpAddr) -> usize {
        self.members.iter().filter(|member| member.source == source).count()
    }

    /// Closes the youngest of the address that has most waiting: those before it keep their turn.
    fn send_away(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for queued in &self.queue {
            *counts.entry(queued.source).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let youngest = self.queue.iter().rposition(|queued| counts.get(&queued.source) == Some(&most));
        youngest.and_then(|youngest| self.queue.remove(youngest));
    }
}

impl Member {
    /// Whether it has taken longer than a client that means it.
    fn is_late(&self, now: Instant) -> bool {
        let longest = if self.spoken { HANDSHAKE_MAX } else { SILENCE_MAX };
        now.saturating_duration_since(self.since) >= longest
    }
}

impl Place {
    /// It has said what a client says first.
    pub(crate) fn has_spoken(&self) -> impl FnOnce() + Send + 'static {
        let (unproven, number) = (self.unproven.clone(), self.number);
        move || {
            let mut crowd = unproven.crowd();
            crowd.members.iter_mut().filter(|member| member.number == number).for_each(|member| {
                member.spoken = true;
            });
        }
    }

    /// Resolves when another needs the place.
    pub(crate) async fn taken(&mut self) {
        // nothing is ever sent
        let _dropped = (&mut self.stays).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unproven.crowd().members.retain(|member| member.number != self.number);
        self.unproven.begin_those_that_can();
    }
}

/// What one host can have addresses in.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
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

    /// Has all members begin so long ago.
    fn grow_older(unproven: &Unproven, by: Duration) {
        unproven.crowd().members.iter_mut().for_each(|member| member.since -= by);
        unproven.begin_those_that_can();
    }

    #[tokio::test]
    async fn who_has_most_makes_room() {
        let unproven = Unproven::default();
        let [one, many] = ["192.0.2.1", "192.0.2.2"].map(address);
        let mut first = unproven.enter(one, 3).try_recv().unwrap();
        let mut second = unproven.enter(many, 3).try_recv().unwrap();
        let mut third = unproven.enter(many, 3).try_recv().unwrap();
        let mut fourth = unproven.enter(one, 3).try_recv().unwrap();
        assert_eq!(unproven.count(), 3);
        assert!(is_taken(&mut second).await);
        assert!(!is_taken(&mut first).await && !is_taken(&mut third).await && !is_taken(&mut fourth).await);
        drop((first, second, third, fourth));
        assert_eq!(unproven.count(), 0);
    }

    #[tokio::test]
    async fn those_of_one_address_wait_for_each_other() {
        let unproven = Unproven::default();
        let host = address("192.0.2.1");
        let enter = || unproven.enter(host, 2);
        let [mut first, second] = [enter(), enter()].map(|mut place| place.try_recv().unwrap());
        let [mut third, mut fourth] = [enter(), enter()];
        assert!(third.try_recv().is_err() && !is_taken(&mut first).await);
        drop(second);
        let third = third.try_recv().unwrap();
        assert!(fourth.try_recv().is_err());
        drop((first, third));
        fourth.try_recv().unwrap();
    }

    #[tokio::test]
    async fn who_says_nothing_goes_first_and_who_does_not_go_on_goes_too() {
        let unproven = Unproven::default();
        let host = address("192.0.2.1");
        let enter = || unproven.enter(host, 2);
        let [mut spoken, mut silent] = [enter(), enter()].map(|mut place| place.try_recv().unwrap());
        spoken.has_spoken()();
        let [mut third, mut fourth] = [enter(), enter()];
        assert!(third.try_recv().is_err());
        grow_older(&unproven, SILENCE_MAX);
        assert!(is_taken(&mut silent).await && !is_taken(&mut spoken).await);
        let _third = third.try_recv().unwrap();
        assert!(fourth.try_recv().is_err());
        grow_older(&unproven, HANDSHAKE_MAX);
        assert!(is_taken(&mut spoken).await);
        fourth.try_recv().unwrap();
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_another_address_passes_it() {
        let unproven = Unproven::default();
        let [one, many] = ["192.0.2.1", "192.0.2.2"].map(address);
        let _members = [(); 2].map(|()| unproven.enter(many, 2).try_recv().unwrap());
        let mut queued: Vec<_> = (0..=QUEUED_MAX).map(|_| unproven.enter(many, 2)).collect();
        let closed = |place: &mut oneshot::Receiver<Place>| {
            matches!(place.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        assert_eq!(queued.iter_mut().filter_map(|place| closed(place).then_some(())).count(), 1);
        assert!(closed(queued.last_mut().unwrap()), "those before it keep their turn");
        unproven.enter(one, 2).try_recv().unwrap();
    }

    #[test]
    fn a_network_of_ipv6_is_one_host() {
        let [first, second, other] = ["2001:db8::1", "2001:db8::2:3:4:5", "2001:db8:0:1::1"].map(address);
        assert_eq!(network(first), network(second));
        assert_ne!(network(first), network(other));
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }
}
