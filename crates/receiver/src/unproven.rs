//! The connections that have not proved a key. There is always room for one more: another goes for it.
//!
//! **Invariant:** who goes is the oldest of the address that has most, so that a host that opens many closes its own.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The connections of one daemon that have not proved a key; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unproven(Arc<Mutex<Crowd>>);

#[derive(Debug, Default)]
struct Crowd {
    entered: u64,
    /// The oldest first.
    members: VecDeque<Member>,
}

#[derive(Debug)]
struct Member {
    number: u64,
    source: IpAddr,
    /// Tells by being dropped.
    _stays: oneshot::Sender<()>,
}

/// A connection's place among them; free when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    unproven: Unproven,
    number: u64,
    stays: oneshot::Receiver<()>,
}

impl Unproven {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.crowd().members.len()
    }

    /// Enters one more; where that makes more than `max`, others go.
    pub(crate) fn enter(&self, address: IpAddr, max: usize) -> Place {
        let (stays_in, stays) = oneshot::channel();
        let mut crowd = self.crowd();
        while crowd.members.len() >= max.max(1) {
            crowd.evict();
        }
        crowd.entered += 1;
        let number = crowd.entered;
        crowd.members.push_back(Member { number, source: network(address), _stays: stays_in });
        drop(crowd);
        Place { unproven: self.clone(), number, stays }
    }

    fn crowd(&self) -> MutexGuard<'_, Crowd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Crowd {
    fn evict(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for member in &self.members {
            *counts.entry(member.source).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let oldest = self.members.iter().position(|member| counts.get(&member.source) == Some(&most));
        self.members.remove(oldest.unwrap_or(0));
    }
}

impl Place {
    /// Resolves when another needs the place.
    pub(crate) async fn taken(&mut self) {
        // nothing is ever sent
        let _dropped = (&mut self.stays).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unproven.crowd().members.retain(|member| member.number != self.number);
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

    #[tokio::test]
    async fn who_has_most_makes_room() {
        let unproven = Unproven::default();
        let [one, many] = ["192.0.2.1", "192.0.2.2"].map(address);
        let mut first = unproven.enter(one, 3);
        let mut second = unproven.enter(many, 3);
        let mut third = unproven.enter(many, 3);
        let mut fourth = unproven.enter(one, 3);
        assert_eq!(unproven.count(), 3);
        assert!(is_taken(&mut second).await);
        assert!(!is_taken(&mut first).await && !is_taken(&mut third).await && !is_taken(&mut fourth).await);
        drop((first, second, third, fourth));
        assert_eq!(unproven.count(), 0);
    }

    #[test]
    fn a_network_of_ipv6_is_one_host() {
        let [first, second, other] = ["2001:db8::1", "2001:db8::2:3:4:5", "2001:db8:0:1::1"].map(address);
        assert_eq!(network(first), network(second));
        assert_ne!(network(first), network(other));
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }
}
