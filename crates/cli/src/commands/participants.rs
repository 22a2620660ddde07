//! Those who share the work of one push: the nodes of a cluster, or several receivers. What each has moved
//! and how fast, which hold up the others, and who takes no part.
//!
//! The head's own share is counted here too, as the observer of its movers.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{interval, timeout};
use zmove_cluster::jetstream::{self, NodeFailure, NodePart, NodeState, TELL_EVERY};
use zmove_cluster::{LEASE, Others, Tally, Told, WorkQueue};
use zmove_types::{Event, Lock, Node, Nodes, Observer, Pace, Party};
use zmove_wire::{FileTotal, TransferProgress};

use crate::display::failures::without_places;

/// The participants of one job.
pub(crate) struct Participants {
    observer: Arc<dyn Observer>,
    party: Party,
    /// The node that leads, among the nodes.
    head: Option<String>,
    entries: Lock<BTreeMap<String, Entry>>,
    /// All nodes that have told that they have nothing to do.
    come: Lock<BTreeSet<String>>,
    /// Why nodes take no part, as the user has been told.
    absent: Lock<BTreeSet<(String, String)>>,
    /// The failures that have been told, by whichever node.
    told: Arc<Told>,
    others: watch::Sender<Others>,
    /// What nodes had found that have ended, or say nothing, and not brought: others find it again.
    unsettled: Lock<FileTotal>,
}

/// What is known of a node.
#[derive(Default)]
struct Entry {
    moved: TransferProgress,
    /// What of that it has told since it began, which it does anew after a failure.
    part: TransferProgress,
    /// What it has done since it began, and before.
    tally: Tally,
    tally_before: Tally,
    has_served: bool,
    presence: Presence,
    /// Whether it has left a session that may still be at work at its receiver.
    has_lost_sessions: bool,
    was_slow: bool,
    /// How often it has warned of something.
    warnings: u32,
    heard: Option<Instant>,
    /// How many bytes there were, at moments of the last seconds.
    marks: VecDeque<(Instant, u64)>,
}

/// Whether a node is there, as far as the user knows; what it tells is true from any of these on.
///
/// ```text
///             ┌──► Offers ──┐
///  Unheard ───┤      ▼      ├─ nothing is heard of it ──► Silent
///             └──► Works ───┤
///                           └─ all is done, or it leaves, or is stopped ──► Ended
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// The head, or a receiver: neither tells anything itself.
    #[default]
    Unheard,
    Offers,
    Works,
    Silent {
        has_begun: bool,
    },
    Ended,
}

/// What shows that a node is there, or is not.
#[derive(Clone, Copy, Debug)]
enum Sign {
    Tells(NodeState),
    Leaves,
    /// Nothing has been heard of it for [`LOST_AFTER`].
    Silence,
}

/// A node as it is at one moment.
struct Look {
    node: Node,
    /// Whether it has been looked at for long enough to be compared.
    is_known: bool,
    /// Whether it has moved something of late.
    is_moving: bool,
    was_slow: bool,
}

impl Participants {
    /// The nodes of a cluster, with this head.
    pub(crate) fn of_nodes(head: String, observer: Arc<dyn Observer>) -> Self {
        Self::new(Party::Nodes, vec![head.clone()], Some(head), observer)
    }

    /// These receivers.
    pub(crate) fn of_receivers(receivers: Vec<String>, observer: Arc<dyn Observer>) -> Self {
        Self::new(Party::Receivers, receivers, None, observer)
    }

    fn new(
        party: Party,
        names: Vec<String>,
        head: Option<String>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let entries = Lock::new(
            names
                .into_iter()
                .map(|name| (name, Entry::default()))
                .collect(),
        );
        let (come, absent) = (Lock::default(), Lock::default());
        let (told, others, unsettled) = Default::default();
        Self {
            observer,
            party,
            head,
            entries,
            come,
            absent,
            told,
            others,
            unsettled,
        }
    }

    /// How many other nodes there are.
    pub(crate) fn others(&self) -> watch::Receiver<Others> {
        self.others.subscribe()
    }

    /// The failures that have been told, by whichever node.
    pub(crate) fn told(&self) -> Arc<Told> {
        Arc::clone(&self.told)
    }

    /// A node has nothing to do, or nothing yet; returns whether this is the first time.
    pub(crate) fn has_come(&self, node: String) -> bool {
        if let Some(entry) = self.entries.lock().get_mut(&node)
            && entry.presence == Presence::Offers
        {
            entry.heard = Some(Instant::now());
        }
        let mut come = self.come.lock();
        come.len() < jetstream::NODES_MAX && come.insert(node)
    }

    /// Tells, once, that there are nodes that are not listened to.
    pub(crate) fn warn_of_too_many(&self) {
        let max = jetstream::NODES_MAX;
        let message =
            format!("more than {max} nodes, by their names, ask for a part: the rest gets none");
        if self.told.insert(&message) {
            self.observer.on(&Event::Warned { message });
        }
    }

    /// Takes what a node tells, which it does each second.
    pub(crate) fn hear(
        &self,
        node: &str,
        NodePart {
            state,
            moved,
            items,
            tally,
            ..
        }: &NodePart,
    ) {
        // one that takes no part tries again from time to time
        let is_absent = || self.absent.lock().iter().any(|(absent, _)| absent == node);
        let has_done_nothing = *items == 0 && *moved == TransferProgress::default();
        if has_done_nothing && *state != NodeState::HasLostSessions && is_absent() {
            return;
        }
        let mut entries = self.entries.lock();
        let entry = entries.entry(node.to_owned()).or_default();
        let more = moved.since(&entry.part);
        entry.part = *moved;
        entry.moved.add(&more);
        // one that has been stopped before its first item had ended has moved something all the same
        entry.has_served |= *items > 0 || moved.stored != FileTotal::default();
        if tally.items < entry.tally.items {
            // it has begun anew
            entry.tally_before = entry.tally();
        }
        entry.tally = tally.clone();
        let unsettled = entry.take(Sign::Tells(*state));
        entry.heard = Some(Instant::now());
        self.count(&entries);
        drop(entries);
        for event in more.events() {
            self.observer.on(&self.without_found_again(event));
        }
        self.unsettled.lock().add(unsettled);
        if *state == NodeState::Stopped {
            let message = format!("{node} was stopped: {BY_OTHERS}");
            self.observer.on(&Event::Warned { message });
        }
    }

    /// Tells, once, why a node takes no part.
    pub(crate) fn leave(&self, NodeFailure { node, message, .. }: NodeFailure) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&node) {
            let has_lost_sessions = entry.has_lost_sessions;
            let unsettled = entry.take(Sign::Leaves);
            if !entry.has_served && !has_lost_sessions {
                entries.remove(&node);
            }
            self.unsettled.lock().add(unsettled);
            self.count(&entries);
        }
        drop(entries);
        if self.absent.lock().insert((node.clone(), message.clone())) {
            self.observer.on(&Event::Warned {
                message: format!("{node} takes no part: {message}"),
            });
        }
    }

    /// Tells what a node that takes part warns of, of each so much at most.
    pub(crate) fn warn(&self, NodeFailure { node, message, .. }: NodeFailure) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&node) else {
            return;
        };
        entry.warnings = entry.warnings.saturating_add(1);
        let warnings = entry.warnings;
        drop(entries);
        let message = match warnings.cmp(&WARNINGS_MAX) {
            Ordering::Less => format!("{message} (at {node})"),
            Ordering::Equal => format!("{node} warns of more, which it says there"),
            Ordering::Greater => return,
        };
        self.observer.on(&Event::Warned { message });
    }

    /// Tells the observer each second how the nodes are, for ever. `moved` says what those have moved who do not tell
    /// it themselves.
    pub(crate) async fn tell(
        &self,
        queue: Arc<impl WorkQueue>,
        moved: impl Fn() -> Vec<(String, TransferProgress)>,
    ) -> Infallible {
        let mut ticks = interval(TELL_EVERY);
        loop {
            ticks.tick().await;
            let mut waiting = None;
            if self.entries.lock().len() > 1 {
                // A broker that is away is not waited for: it is not what is wanted here.
                let asked = timeout(TELL_EVERY, queue.waiting()).await;
                waiting = asked.ok().and_then(Result::ok).map(|asked| asked.left);
            }
            self.tell_now(waiting, moved());
        }
    }

    /// Tells the observer how the nodes are now, if there are several.
    pub(crate) fn tell_now(&self, waiting: Option<u64>, moved: Vec<(String, TransferProgress)>) {
        let mut entries = self.entries.lock();
        for (name, moved) in moved {
            entries.entry(name).or_default().moved = moved;
        }
        let are_several = entries.len() > 1;
        drop(entries);
        if are_several {
            self.observer
                .on(&Event::Nodes(self.look(waiting, Instant::now())));
        }
    }

    /// How the nodes are now.
    fn look(&self, waiting: Option<u64>, now: Instant) -> Nodes {
        let mut entries = self.entries.lock();
        let looks = entries
            .iter_mut()
            .map(|(name, entry)| entry.look(name, now));
        let mut looks: Vec<_> = looks.collect();
        compare(&mut looks, waiting);
        let mut lost = Vec::new();
        for (entry, look) in entries.values_mut().zip(&looks) {
            entry.was_slow = look.node.pace == Pace::Slow;
            let before = entry.presence;
            if entry.is_unheard_for(LOST_AFTER, now) {
                self.unsettled.lock().add(entry.take(Sign::Silence));
            }
            if entry.presence != before {
                lost.push(look.node.name.clone());
            }
        }
        self.count(&entries);
        drop(entries);
        for node in lost {
            let after = LOST_AFTER.as_secs();
            let message = format!("{node} has not been heard of for {after} s: {BY_OTHERS}");
            self.observer.on(&Event::Warned { message });
        }
        let mut nodes: Vec<_> = looks.into_iter().map(|look| look.node).collect();
        let count = nodes.len() as u64;
        nodes.sort_by_key(|node| Reverse(matches!(node.pace, Pace::Slow | Pace::Silent)));
        nodes.truncate(NODES_MAX);
        Nodes {
            party: self.party,
            count,
            waiting,
            nodes,
        }
    }

    fn without_found_again(&self, event: Event) -> Event {
        match event {
            Event::Found { files, bytes } => {
                let FileTotal { files, bytes } = self
                    .unsettled
                    .lock()
                    .found_again(FileTotal { files, bytes });
                Event::Found { files, bytes }
            }
            other => other,
        }
    }

    fn count(&self, entries: &BTreeMap<String, Entry>) {
        let others = || {
            entries
                .iter()
                .filter(|(name, _)| self.head.as_ref() != Some(name))
        };
        let count = |is: fn(&Entry) -> bool| others().filter(|(_, entry)| is(entry)).count();
        let counted = Others {
            at_work: count(Entry::is_at_work),
            unfinished: count(|entry| !entry.is_finished()),
            tally: others()
                .map(|(_, entry)| entry.tally())
                .fold(Tally::default(), Tally::and),
        };
        self.others.send_if_modified(|before| {
            *before != counted && {
                *before = counted;
                true
            }
        });
    }

    /// How many nodes have done any of the work, this one among them if it `has_served`.
    pub(crate) fn served(&self, has_served: bool) -> usize {
        let others = self
            .entries
            .lock()
            .values()
            .filter(|entry| entry.has_served)
            .count();
        others + usize::from(has_served)
    }

    /// What the node that leads has moved itself.
    pub(crate) fn moved_here(&self) -> TransferProgress {
        let entries = self.entries.lock();
        let head = self.head.as_ref().and_then(|head| entries.get(head));
        head.map(|entry| entry.moved).unwrap_or_default()
    }
}

impl Observer for Participants {
    fn on(&self, event: &Event) {
        match (event, &self.head) {
            (Event::Failed { message }, _) if !self.told.insert(without_places(message)) => return,
            (Event::Stored { .. }, Some(head)) => {
                let mut entries = self.entries.lock();
                entries.entry(head.clone()).or_default().moved.hear(event);
            }
            (Event::Found { .. }, _) => {
                return self.observer.on(&self.without_found_again(event.clone()));
            }
            _ => {}
        }
        self.observer.on(event);
    }
}

impl Entry {
    fn look(&mut self, name: &str, now: Instant) -> Look {
        let pace = match (
            self.presence == Presence::Ended,
            self.is_unheard_for(SILENT_AFTER, now),
        ) {
            (true, _) => Pace::Ended,
            (false, true) => Pace::Silent,
            (false, false) => Pace::Works,
        };
        let bytes_per_second = self.rate(now);
        let FileTotal { files, bytes } = self.moved.stored;
        let node = Node {
            name: name.to_owned(),
            pace,
            files,
            bytes,
            bytes_per_second,
            percent_of_others: None,
        };
        let ago = |span| move |(then, _): &&(Instant, u64)| now.duration_since(*then) >= span;
        let is_known = self.marks.iter().any(|mark| ago(WINDOW)(&mark));
        let before = self.marks.iter().rev().find(ago(IDLE_AFTER));
        let is_moving = before.is_some_and(|(_, before)| *before < bytes);
        Look {
            node,
            is_known,
            is_moving,
            was_slow: self.was_slow,
        }
    }

    /// Takes a sign; returns what the node had found and not brought, if others are to do that now.
    fn take(&mut self, sign: Sign) -> FileTotal {
        let (presence, loses_sessions) = self.presence.after(sign);
        self.presence = presence;
        self.has_lost_sessions |= loses_sessions;
        let mut unsettled = FileTotal::default();
        if matches!(presence, Presence::Silent { .. } | Presence::Ended) {
            let part = &mut self.part;
            unsettled = part.found;
            unsettled.take(part.stored);
            unsettled.take(part.skipped);
            // A node that continues finds these files again.
            part.found.take(unsettled);
        }
        unsettled
    }

    /// What it has done.
    fn tally(&self) -> Tally {
        self.tally_before.clone().and(self.tally.clone())
    }

    /// Whether all of its sessions are known to have ended as they should.
    fn is_finished(&self) -> bool {
        self.presence == Presence::Ended && !self.has_lost_sessions
    }

    /// Whether it does some of the work, as far as is known.
    fn is_at_work(&self) -> bool {
        matches!(
            self.presence,
            Presence::Unheard | Presence::Offers | Presence::Works
        )
    }

    fn is_unheard_for(&self, span: Duration, now: Instant) -> bool {
        self.heard
            .is_some_and(|heard| now.saturating_duration_since(heard) > span)
    }

    /// The bytes of a second, over the last seconds.
    fn rate(&mut self, now: Instant) -> u64 {
        self.marks.push_back((now, self.moved.stored.bytes));
        while self.marks.len() > 2 && now.duration_since(self.marks[1].0) >= WINDOW {
            self.marks.pop_front();
        }
        let (since, before) = self.marks[0];
        let millis = u64::try_from(now.duration_since(since).as_millis()).unwrap_or(u64::MAX);
        self.moved
            .stored
            .bytes
            .saturating_sub(before)
            .saturating_mul(1000)
            .checked_div(millis)
            .unwrap_or_default()
    }
}

impl Presence {
    /// What follows from a sign, and whether a session of the node may be lost by it.
    fn after(self, sign: Sign) -> (Self, bool) {
        let has_begun = matches!(self, Self::Works | Self::Silent { has_begun: true });
        match sign {
            // it has begun anew
            Sign::Tells(NodeState::Offers) => (Self::Offers, has_begun),
            Sign::Tells(NodeState::Works) => (Self::Works, false),
            Sign::Tells(NodeState::HasEnded) => (Self::Ended, false),
            Sign::Tells(NodeState::HasLostSessions | NodeState::Stopped) | Sign::Leaves => {
                (Self::Ended, true)
            }
            Sign::Silence if matches!(self, Self::Offers | Self::Works) => {
                (Self::Silent { has_begun }, false)
            }
            Sign::Silence => (self, false),
        }
    }
}

/// Compares the rates of the nodes at work that are known for long enough. Where no item waits, one that moves nothing
/// has nothing to do, and is not compared. One that was slow stays so when nobody else has anything to do: all wait for
/// it.
fn compare(looks: &mut [Look], waiting: Option<u64>) {
    let has_work = |look: &Look| look.is_moving || waiting.is_some_and(|waiting| waiting > 0);
    let works = |look: &Look| look.node.pace == Pace::Works && look.is_known && has_work(look);
    let rates: Vec<_> = looks
        .iter()
        .map(|look| works(look).then_some(look.node.bytes_per_second))
        .collect();
    for (
        at,
        Look {
            node,
            is_moving,
            was_slow,
            ..
        },
    ) in looks.iter_mut().enumerate()
    {
        let Some(rate) = rates[at] else { continue };
        let others = rates.iter().enumerate().filter(|(other, _)| *other != at);
        let mut others: Vec<_> = others.filter_map(|(_, rate)| *rate).collect();
        others.sort_unstable();
        let median = others
            .get(others.len() / 2)
            .copied()
            .filter(|median| *median > 0);
        node.percent_of_others = median.map(|median| rate.saturating_mul(100) / median);
        let below = if *was_slow {
            KEEPS_UP_PERCENT
        } else {
            SLOW_PERCENT
        };
        let is_slow = node
            .percent_of_others
            .map_or(*was_slow && *is_moving, |percent| percent < below);
        if is_slow {
            node.pace = Pace::Slow;
        }
    }
}

const BY_OTHERS: &str = "others do what it had to do";
/// How long a node may say nothing; it tells each [`TELL_EVERY`].
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long until the user is told so: what it has taken is leased for twice as long.
const LOST_AFTER: Duration = Duration::from_secs(LEASE.as_secs() / 2);
/// What rates are measured over: items come and go in less.
const WINDOW: Duration = Duration::from_secs(5);
/// A node at work that has moved nothing for so long counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// Below so much of what others move a node is slow.
const SLOW_PERCENT: u64 = 50;
/// From so much on it is so no longer: rates of others that have just run out of work sink slowly.
const KEEPS_UP_PERCENT: u64 = 80;
/// From so many warnings on a node's are not told.
const WARNINGS_MAX: u32 = 20;
/// The most nodes that are told of.
const NODES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use zmove_types::NoObserver;

    use super::*;

    fn stored(files: u64, bytes: u64) -> TransferProgress {
        TransferProgress {
            stored: FileTotal { files, bytes },
            ..TransferProgress::default()
        }
    }

    fn found(files: u64) -> FileTotal {
        FileTotal { files, bytes: 0 }
    }

    fn part(bytes: u64, state: NodeState) -> NodePart {
        let moved = stored(1, bytes);
        NodePart {
            job: [0; 16],
            state,
            moved,
            items: 1,
            tally: Tally::default(),
            granted_until: None,
            ping: 0,
        }
    }

    fn paces(nodes: &Nodes) -> Vec<(&str, Pace)> {
        nodes
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.pace))
            .collect()
    }

    #[derive(Default)]
    struct Warnings(Lock<Vec<String>>);

    impl Observer for Warnings {
        fn on(&self, event: &Event) {
            if let Event::Warned { message } = event {
                self.0.lock().push(message.clone());
            }
        }
    }

    #[test]
    fn each_sign_of_a_node_leads_to_one_presence_and_may_show_that_sessions_are_lost() {
        use NodeState::{HasEnded, HasLostSessions, Offers as ToOffer, Stopped, Works as ToWork};
        use Presence::{Ended, Offers, Silent, Unheard, Works};
        let begun = Silent { has_begun: true };
        let not_begun = Silent { has_begun: false };
        let all = [Unheard, Offers, Works, not_begun, begun, Ended];
        for before in all {
            let is_lost = [Works, begun].contains(&before);
            let told = [
                (ToOffer, (Offers, is_lost)),
                (ToWork, (Works, false)),
                (HasEnded, (Ended, false)),
                (HasLostSessions, (Ended, true)),
                (Stopped, (Ended, true)),
            ];
            for (state, after) in told {
                assert_eq!(
                    before.after(Sign::Tells(state)),
                    after,
                    "{before:?}, {state:?}"
                );
            }
        }
        let after = |sign| all.map(|before| before.after(sign));
        assert_eq!(after(Sign::Leaves), [(Ended, true); 6]);
        let kept = |presence| (presence, false);
        assert_eq!(
            after(Sign::Silence),
            [Unheard, not_begun, begun, not_begun, begun, Ended].map(kept)
        );
    }

    #[test]
    fn a_node_that_is_not_heard_of_is_told_once_until_it_is_back() {
        let warnings = Arc::new(Warnings::default());
        let participants =
            Participants::of_nodes("head".into(), Arc::clone(&warnings) as Arc<dyn Observer>);
        let told_after = |seconds| {
            participants.look(None, Instant::now() + Duration::from_secs(seconds));
            warnings.0.lock().len()
        };
        participants.hear("n1", &part(1, NodeState::Works));
        assert_eq!([10, 20, 30].map(told_after), [0, 1, 1]);
        assert!(warnings.0.lock()[0].contains("n1 has not been heard of for 15 s"));
        participants.hear("n1", &part(2, NodeState::Works));
        assert_eq!([1, 20].map(told_after), [1, 2]);
        participants.hear("n1", &part(2, NodeState::HasEnded));
        assert_eq!([1, 20].map(told_after), [2, 2]);
        participants.hear("n3", &part(0, NodeState::Offers));
        let heard = participants.entries.lock()["n3"].heard;
        participants.has_come("n3".into());
        assert!(
            participants.entries.lock()["n3"].heard > heard,
            "it waits for the job to begin"
        );
        participants.hear("n3", &part(0, NodeState::HasEnded));
        participants.hear("n2", &part(2, NodeState::Stopped));
        assert_eq!([1, 20].map(told_after), [3, 3]);
        assert!(warnings.0.lock()[2].contains("n2 was stopped"));
        let others = Others {
            at_work: 0,
            unfinished: 1,
            ..Others::default()
        };
        assert_eq!(
            *participants.others().borrow(),
            others,
            "its sessions may go on for a moment"
        );
    }

    /// What it tells until it hears that it has left is of no part.
    #[test]
    fn a_node_that_has_left_before_it_has_done_anything_is_not_waited_for() {
        let participants = Participants::of_nodes("head".into(), Arc::new(NoObserver));
        let nothing = NodePart {
            items: 0,
            moved: TransferProgress::default(),
            ..part(0, NodeState::Works)
        };
        participants.hear("n", &nothing);
        assert_eq!(participants.others().borrow().unfinished, 1);
        participants.leave(NodeFailure {
            job: [0; 16],
            node: "n".into(),
            message: "no".into(),
        });
        participants.hear("n", &nothing);
        assert_eq!(participants.others().borrow().unfinished, 0);
        let found = TransferProgress {
            found: found(1),
            ..TransferProgress::default()
        };
        participants.hear(
            "n",
            &NodePart {
                moved: found,
                ..nothing
            },
        );
        assert_eq!(
            participants.others().borrow().unfinished,
            1,
            "by another try"
        );
    }

    #[test]
    fn a_node_that_names_itself_by_thousands_of_names_is_not_listened_to_without_end() {
        let warnings = Arc::new(Warnings::default());
        let participants =
            Participants::of_nodes("head".into(), Arc::clone(&warnings) as Arc<dyn Observer>);
        let come = (0..5000)
            .filter(|name| participants.has_come(name.to_string()))
            .count();
        assert_eq!(come, jetstream::NODES_MAX);
        (0..3).for_each(|_| participants.warn_of_too_many());
        assert_eq!(warnings.0.lock().len(), 1);
        (0..200).for_each(|name| participants.hear(&name.to_string(), &part(1, NodeState::Works)));
        let shown = participants.look(None, Instant::now());
        assert_eq!((shown.nodes.len(), shown.count), (NODES_MAX, 201));
    }

    #[test]
    fn what_nodes_warn_of_is_told_with_their_names_and_none_floods_the_user() {
        let warnings = Arc::new(Warnings::default());
        let participants =
            Participants::of_nodes("head".into(), Arc::clone(&warnings) as Arc<dyn Observer>);
        let warn = |node: &str, number| {
            participants.warn(NodeFailure {
                job: [0; 16],
                node: node.into(),
                message: format!("lost {number}"),
            });
            warnings.0.lock().len()
        };
        assert_eq!(warn("stranger", 0), 0, "it takes no part");
        ["n1", "n2"]
            .into_iter()
            .for_each(|node| participants.hear(node, &part(1, NodeState::Works)));
        assert_eq!(warn("n1", 1), 1);
        for number in 0..1000 {
            warn("n1", number);
        }
        assert_eq!(warn("n2", 7), 21, "one has no part in the bound of another");
        let told = warnings.0.lock();
        assert_eq!(
            (&*told[0], &*told[20]),
            ("lost 1 (at n1)", "lost 7 (at n2)")
        );
        assert_eq!(told[19], "n1 warns of more, which it says there");
    }

    #[test]
    fn a_node_that_begins_anew_loses_nothing_of_what_it_has_told() {
        let participants = Participants::of_nodes("head".into(), Arc::new(NoObserver));
        for files in [4, 10, 0, 2] {
            let moved = stored(files, 0);
            participants.hear(
                "n1",
                &NodePart {
                    moved,
                    ..part(0, NodeState::Works)
                },
            );
        }
        assert_eq!(participants.entries.lock()["n1"].moved.stored.files, 12);
    }

    /// The head and three nodes, of which each has told of so many bytes, after 12 s.
    fn told(bytes: impl Fn(u64) -> [u64; 4], waiting: u64) -> Nodes {
        let participants = Participants::of_nodes("head".into(), Arc::new(NoObserver));
        let began = Instant::now();
        let mut nodes = Nodes::default();
        for second in 0..=12 {
            let [head, others @ ..] = bytes(second);
            for (node, bytes) in ["n1", "n2", "n3"].into_iter().zip(others) {
                participants.hear(node, &part(bytes, NodeState::Works));
            }
            let before = participants.entries.lock()["head"].moved.stored.bytes;
            participants.on(&Event::Stored {
                files: 0,
                bytes: head - before,
            });
            // that time has not passed
            participants
                .entries
                .lock()
                .values_mut()
                .for_each(|entry| entry.heard = None);
            nodes = participants.look(Some(waiting), began + Duration::from_secs(second));
        }
        nodes
    }

    fn slow(nodes: &Nodes) -> Vec<&str> {
        paces(nodes)
            .into_iter()
            .filter(|(_, pace)| *pace == Pace::Slow)
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn a_node_that_moves_less_than_half_of_what_the_others_do_is_slow() {
        let nodes = told(
            |second| [1000, 1000, 300, 1100].map(|rate| rate * second),
            7,
        );
        assert_eq!((nodes.count, nodes.waiting), (4, Some(7)));
        let expected = [
            ("n2", Pace::Slow),
            ("head", Pace::Works),
            ("n1", Pace::Works),
            ("n3", Pace::Works),
        ];
        assert_eq!(paces(&nodes), expected);
        let first = &nodes.nodes[0];
        assert_eq!(
            (first.bytes, first.bytes_per_second, first.percent_of_others),
            (3600, 300, Some(30))
        );
        assert_eq!(
            nodes.nodes[1].bytes, 12_000,
            "the head's own movers are counted"
        );
        for (rate, pace) in [(490, Pace::Slow), (510, Pace::Works)] {
            let nodes = told(
                |second| [1000, 1000, rate, 1000].map(|rate| rate * second),
                7,
            );
            assert!(paces(&nodes).contains(&("n2", pace)), "{rate}");
        }
    }

    #[test]
    fn who_has_nothing_to_do_is_not_slow_and_whom_all_wait_for_is() {
        let idle = |second: u64| {
            [
                1000 * second,
                1000 * second,
                1000 * second.min(8),
                1000 * second,
            ]
        };
        assert_eq!(slow(&told(idle, 0)), [""; 0]);
        assert_eq!(slow(&told(idle, 1)), ["n2"]);
        let last = |second: u64| {
            [
                1000 * second.min(8),
                1000 * second.min(8),
                300 * second,
                1000 * second.min(8),
            ]
        };
        assert_eq!(slow(&told(last, 0)), ["n2"]);
    }

    #[test]
    fn a_node_that_says_nothing_is_silent_unless_it_has_ended_or_was_stopped() {
        let participants = Participants::of_nodes("head".into(), Arc::new(NoObserver));
        let began = Instant::now();
        participants.hear("n1", &part(10, NodeState::Works));
        participants.hear("n2", &part(10, NodeState::HasEnded));
        participants.hear("n3", &part(10, NodeState::Stopped));
        assert_eq!(participants.look(None, began).nodes[1].pace, Pace::Works);
        let later = participants.look(None, began + SILENT_AFTER + Duration::from_secs(2));
        let expected = [
            ("n1", Pace::Silent),
            ("head", Pace::Works),
            ("n2", Pace::Ended),
            ("n3", Pace::Ended),
        ];
        assert_eq!(paces(&later), expected);
    }

    #[derive(Default)]
    struct Heard(Lock<Vec<Event>>);

    impl Observer for Heard {
        fn on(&self, event: &Event) {
            self.0.lock().push(event.clone());
        }
    }

    fn absent(node: &str) -> NodeFailure {
        NodeFailure {
            job: [0; 16],
            node: node.into(),
            message: "it is tired".into(),
        }
    }

    #[test]
    fn who_has_moved_something_is_counted_also_if_it_stops_then_and_who_has_not_is_not() {
        let participants = Participants::of_nodes("head".into(), Arc::new(NoObserver));
        let told = |files, items| NodePart {
            moved: stored(files, 0),
            items,
            ..part(0, NodeState::Works)
        };
        participants.hear("walks", &told(0, 3));
        participants.hear("stops", &told(7, 0));
        participants.hear("refused", &told(0, 0));
        assert_eq!(participants.others().borrow().unfinished, 3);
        ["stops", "refused"]
            .into_iter()
            .for_each(|node| participants.leave(absent(node)));
        // it begins anew, and has done nothing yet
        participants.hear("stops", &told(0, 0));
        assert_eq!(
            (participants.served(false), participants.served(true)),
            (2, 3)
        );
        let others = Others {
            at_work: 1,
            unfinished: 2,
            ..Others::default()
        };
        assert_eq!(
            *participants.others().borrow(),
            others,
            "one that has left may have sessions still"
        );
        participants.hear(
            "refused",
            &NodePart {
                state: NodeState::HasLostSessions,
                ..told(0, 0)
            },
        );
        assert_eq!(participants.others().borrow().unfinished, 3);
        let ended = NodePart {
            state: NodeState::HasEnded,
            ..told(7, 3)
        };
        ["walks", "stops", "refused"]
            .into_iter()
            .for_each(|node| participants.hear(node, &ended));
        let others = Others {
            at_work: 0,
            unfinished: 2,
            ..Others::default()
        };
        assert_eq!(
            *participants.others().borrow(),
            others,
            "sessions of before stay lost"
        );
    }

    #[test]
    fn what_a_node_had_found_that_has_gone_is_no_more_when_another_finds_it_or_the_node_is_back() {
        let heard = Arc::new(Heard::default());
        let participants =
            Participants::of_nodes("head".into(), Arc::clone(&heard) as Arc<dyn Observer>);
        let told = |found_files, files| NodePart {
            moved: TransferProgress {
                found: found(found_files),
                ..stored(files, 0)
            },
            ..part(1, NodeState::Works)
        };
        let found = || {
            let heard = heard.0.lock();
            let found = heard.iter().map(|event| {
                if let Event::Found { files, .. } = event {
                    *files
                } else {
                    0
                }
            });
            found.sum::<u64>()
        };
        participants.hear("a", &told(9, 2));
        participants.hear(
            "a",
            &NodePart {
                state: NodeState::Stopped,
                ..told(10, 3)
            },
        );
        participants.hear("b", &told(7, 0));
        assert_eq!(found(), 10, "of the other");
        participants.hear("b", &told(8, 0));
        assert_eq!(found(), 11);
        participants.look(None, Instant::now() + LOST_AFTER * 2);
        participants.hear("b", &told(9, 9));
        assert_eq!(found(), 12, "it is back, and has found one more");
        participants.hear("b", &told(12, 9));
        participants.look(None, Instant::now() + LOST_AFTER * 2);
        participants.on(&Event::Found { files: 4, bytes: 0 });
        assert_eq!(
            found(),
            16,
            "this node has found three of them and one more"
        );
    }

    #[test]
    fn a_failure_is_told_once_whichever_node_tells_it() {
        let heard = Arc::new(Heard::default());
        let participants =
            Participants::of_nodes("head".into(), Arc::clone(&heard) as Arc<dyn Observer>);
        for at in ["", " (at 10.0.0.1:7)", " (at 10.0.0.2:7) (at n1)"] {
            participants.on(&Event::Failed {
                message: format!("receiver: write 'x': full{at}"),
            });
        }
        participants.on(&Event::Failed {
            message: "receiver: write 'y': full".into(),
        });
        assert_eq!(heard.0.lock().len(), 2);
    }
}
