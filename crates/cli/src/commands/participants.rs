//! The nodes of a cluster or the receivers that share the work of one push: what each has moved and how fast, which of
//! them hold up the others, and which nodes take no part.
//!
//! The head's own share is counted here too, as the observer of its movers.

mod rates;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{interval, timeout};
use zmove_cluster::jetstream::{self, NodeFailure, NodePart, NodeState, TELL_EVERY};
use zmove_cluster::{LEASE, Others, Tally, Told, WorkQueue};
use zmove_types::{Event, Lock, Nodes, Observer, Pace, Party};
use zmove_wire::{FileTotal, TransferProgress};

use self::rates::{Rate, compare};
use crate::display::failures::without_places;

/// The participants of one job.
pub(crate) struct Participants {
    observer: Arc<dyn Observer>,
    /// The node that leads; `None` for a push of one node to several receivers.
    head: Option<String>,
    entries: Lock<BTreeMap<String, Entry>>,
    receivers: Lock<Vec<ReceiverEntry>>,
    /// All nodes that have reported that they have nothing to do.
    come: Lock<BTreeSet<String>>,
    /// The reasons for which nodes take no part, as the user has seen them.
    absent: Lock<BTreeSet<(String, String)>>,
    /// The failures that have been reported, by whichever node.
    told: Arc<Told>,
    others: watch::Sender<Others>,
    /// The last look at all participants.
    shown: Lock<Nodes>,
}

/// What is known of a receiver.
#[derive(Default)]
struct ReceiverEntry {
    name: String,
    /// What other nodes have stored there.
    by_others: FileTotal,
    rate: Rate,
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
    /// How often it has warned of something.
    warnings: u32,
    heard: Option<Instant>,
    /// What it has stored at each receiver since it began.
    receivers: BTreeMap<usize, FileTotal>,
    rate: Rate,
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

impl Participants {
    /// The nodes of a cluster, with this head, and their receivers.
    pub(crate) fn of_nodes(
        head: String,
        receivers: Vec<String>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let entries = BTreeMap::from([(head.clone(), Entry::default())]);
        Self {
            head: Some(head),
            entries: Lock::new(entries),
            ..Self::of_receivers(receivers, observer)
        }
    }

    /// The receivers of a push of one node.
    pub(crate) fn of_receivers(receivers: Vec<String>, observer: Arc<dyn Observer>) -> Self {
        let receiver = |name| ReceiverEntry {
            name,
            ..ReceiverEntry::default()
        };
        Self {
            observer,
            head: None,
            entries: Lock::default(),
            receivers: Lock::new(receivers.into_iter().map(receiver).collect()),
            come: Lock::default(),
            absent: Lock::default(),
            told: Arc::default(),
            others: watch::Sender::default(),
            shown: Lock::default(),
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
    pub(crate) fn hear(&self, node: &str, part: &NodePart) {
        let NodePart {
            state,
            moved,
            items,
            tally,
            ..
        } = part;
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
        entry.take(Sign::Tells(*state));
        entry.heard = Some(Instant::now());
        let before = std::mem::replace(&mut entry.receivers, part.receivers.clone());
        self.count(&entries);
        drop(entries);
        for (number, receiver) in self.receivers.lock().iter_mut().enumerate() {
            let [mut now, before] = [&part.receivers, &before]
                .map(|receivers| receivers.get(&number).copied().unwrap_or_default());
            now.take(before);
            receiver.by_others.add(now);
        }
        for event in more.events() {
            self.observer.on(&event);
        }
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
            entry.take(Sign::Leaves);
            if !entry.has_served && !has_lost_sessions {
                entries.remove(&node);
            }
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

    /// Reports all participants each second, for ever. `own` returns what this process has stored at each receiver.
    pub(crate) async fn tell(
        &self,
        queue: Arc<impl WorkQueue>,
        own: impl Fn() -> BTreeMap<usize, FileTotal>,
    ) -> Infallible {
        let mut ticks = interval(TELL_EVERY);
        loop {
            ticks.tick().await;
            // Nobody waits here for a broker that is away.
            let asked = timeout(TELL_EVERY, queue.waiting()).await;
            let waiting = asked.ok().and_then(Result::ok).map(|asked| asked.left);
            self.tell_now(waiting, &own());
        }
    }

    /// Reports all participants now, if there are several.
    pub(crate) fn tell_now(&self, waiting: Option<u64>, own: &BTreeMap<usize, FileTotal>) {
        let nodes = self.look(waiting, own, Instant::now());
        *self.shown.lock() = nodes.clone();
        if nodes.count > 1 {
            self.observer.on(&Event::Nodes(nodes));
        }
    }

    /// The participants when they were last reported.
    pub(crate) fn shown(&self) -> Nodes {
        self.shown.lock().clone()
    }

    fn look(&self, waiting: Option<u64>, own: &BTreeMap<usize, FileTotal>, now: Instant) -> Nodes {
        let mut receivers = self.receivers.lock();
        let looks = receivers.iter_mut().enumerate().map(|(number, receiver)| {
            let mut stored = receiver.by_others;
            stored.add(own.get(&number).copied().unwrap_or_default());
            receiver.rate.look(&receiver.name, Pace::Works, stored, now)
        });
        let looked = compare(looks.collect(), waiting);
        let count = receivers.len() as u64;
        drop(receivers);
        if self.head.is_none() {
            return Nodes {
                party: Party::Receivers,
                count,
                waiting,
                nodes: looked,
                receivers: Vec::new(),
            };
        }
        self.warn_of_silent(now);
        let mut entries = self.entries.lock();
        let looks = entries.iter_mut().map(|(name, entry)| {
            let pace = entry.pace(now);
            entry.rate.look(name, pace, entry.moved.stored, now)
        });
        let nodes = compare(looks.collect(), waiting);
        Nodes {
            party: Party::Nodes,
            count: entries.len() as u64,
            waiting,
            nodes,
            receivers: looked,
        }
    }

    /// Warns of each node that has not been heard of for too long, once until it is back.
    fn warn_of_silent(&self, now: Instant) {
        let mut lost = Vec::new();
        let mut entries = self.entries.lock();
        for (name, entry) in &mut *entries {
            let before = entry.presence;
            if entry.is_unheard_for(LOST_AFTER, now) {
                entry.take(Sign::Silence);
            }
            if entry.presence != before {
                lost.push(name.clone());
            }
        }
        self.count(&entries);
        drop(entries);
        for node in lost {
            let after = LOST_AFTER.as_secs();
            let message = format!("{node} has not been heard of for {after} s: {BY_OTHERS}");
            self.observer.on(&Event::Warned { message });
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
}

impl Observer for Participants {
    fn on(&self, event: &Event) {
        match (event, &self.head) {
            (Event::Failed { message }, _) if !self.told.insert(without_places(message)) => return,
            (Event::Stored { .. }, Some(head)) => {
                let mut entries = self.entries.lock();
                entries.entry(head.clone()).or_default().moved.hear(event);
            }
            _ => {}
        }
        self.observer.on(event);
    }
}

impl Entry {
    fn pace(&self, now: Instant) -> Pace {
        if self.presence == Presence::Ended {
            Pace::Ended
        } else if self.is_unheard_for(SILENT_AFTER, now) {
            Pace::Silent
        } else {
            Pace::Works
        }
    }

    fn take(&mut self, sign: Sign) {
        let (presence, loses_sessions) = self.presence.after(sign);
        self.presence = presence;
        self.has_lost_sessions |= loses_sessions;
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

const BY_OTHERS: &str = "others do what it had to do";
/// How long a node may say nothing; it tells each [`TELL_EVERY`].
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long until the user is told so: what it has taken is leased for twice as long.
const LOST_AFTER: Duration = Duration::from_secs(LEASE.as_secs() / 2);
/// From so many warnings on a node's are not told.
const WARNINGS_MAX: u32 = 20;
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
            receivers: BTreeMap::new(),
        }
    }

    fn paces(nodes: &Nodes) -> Vec<(&str, Pace)> {
        nodes
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.pace))
            .collect()
    }

    fn of_nodes(observer: Arc<dyn Observer>) -> Participants {
        let receivers = ["r0", "r1"].map(str::to_owned).into();
        Participants::of_nodes("head".into(), receivers, observer)
    }

    fn look(participants: &Participants, now: Instant) -> Nodes {
        participants.look(None, &BTreeMap::new(), now)
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
        let participants = of_nodes(Arc::clone(&warnings) as Arc<dyn Observer>);
        let told_after = |seconds| {
            look(&participants, Instant::now() + Duration::from_secs(seconds));
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
        let participants = of_nodes(Arc::new(NoObserver));
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
            found: FileTotal { files: 1, bytes: 0 },
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
        let participants = of_nodes(Arc::clone(&warnings) as Arc<dyn Observer>);
        let come = (0..5000)
            .filter(|name| participants.has_come(name.to_string()))
            .count();
        assert_eq!(come, jetstream::NODES_MAX);
        (0..3).for_each(|_| participants.warn_of_too_many());
        assert_eq!(warnings.0.lock().len(), 1);
        (0..200).for_each(|name| participants.hear(&name.to_string(), &part(1, NodeState::Works)));
        let shown = look(&participants, Instant::now());
        assert_eq!((shown.nodes.len(), shown.count), (rates::NODES_MAX, 201));
    }

    #[test]
    fn what_nodes_warn_of_is_told_with_their_names_and_none_floods_the_user() {
        let warnings = Arc::new(Warnings::default());
        let participants = of_nodes(Arc::clone(&warnings) as Arc<dyn Observer>);
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
        let participants = of_nodes(Arc::new(NoObserver));
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

    #[test]
    fn what_all_nodes_have_stored_is_summed_by_receiver() {
        let participants = of_nodes(Arc::new(NoObserver));
        let total = |bytes| FileTotal { files: 1, bytes };
        let tells = |node, receivers: &[(usize, u64)]| {
            let receivers = receivers
                .iter()
                .map(|(number, bytes)| (*number, total(*bytes)));
            let part = NodePart {
                receivers: receivers.collect(),
                ..part(1, NodeState::Works)
            };
            participants.hear(node, &part);
        };
        tells("n1", &[(0, 10)]);
        tells("n1", &[(0, 15), (1, 100)]);
        tells("n2", &[(1, 1000)]);
        let own = BTreeMap::from([(0, total(7))]);
        let looked = participants.look(None, &own, Instant::now());
        let bytes = looked
            .receivers
            .iter()
            .map(|node| (node.name.as_str(), node.bytes));
        assert_eq!(bytes.collect::<Vec<_>>(), [("r0", 22), ("r1", 1100)]);
    }

    #[test]
    fn of_one_node_the_receivers_are_shown() {
        let names = ["r0", "r1"].map(str::to_owned).into();
        let participants = Participants::of_receivers(names, Arc::new(NoObserver));
        let looked = look(&participants, Instant::now());
        assert_eq!((looked.party, looked.count), (Party::Receivers, 2));
        assert_eq!(looked.nodes.len(), 2);
    }

    #[test]
    fn a_node_that_says_nothing_is_silent_unless_it_has_ended_or_was_stopped() {
        let participants = of_nodes(Arc::new(NoObserver));
        let began = Instant::now();
        participants.hear("n1", &part(10, NodeState::Works));
        participants.hear("n2", &part(10, NodeState::HasEnded));
        participants.hear("n3", &part(10, NodeState::Stopped));
        assert_eq!(look(&participants, began).nodes[1].pace, Pace::Works);
        let later = look(&participants, began + SILENT_AFTER + Duration::from_secs(2));
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
        let participants = of_nodes(Arc::new(NoObserver));
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
    fn a_failure_is_told_once_whichever_node_tells_it() {
        let heard = Arc::new(Heard::default());
        let participants = of_nodes(Arc::clone(&heard) as Arc<dyn Observer>);
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
