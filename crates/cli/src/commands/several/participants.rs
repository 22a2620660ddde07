//! The nodes of a cluster or the receivers that share the work of one push. This module reports the files, bytes and
//! rate of each participant, the participants that hold up the others, and the nodes that do not take part.

mod rates;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::iter::once;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{interval, timeout};
use zmove_cluster::jetstream::{NODES_MAX, NOTICE_INTERVAL, NodeFailure, NodePart, NodeState};
use zmove_cluster::{LEASE, Others, SeenMessages, SessionResults, Tally, WorkQueue};
use zmove_jobs::{Nodes, Pace, Party};
use zmove_types::{Event, Lock, Observer};
use zmove_wire::{FileTotal, TransferProgress};

use self::rates::{Rate, compare};
use crate::display::failures::without_places;

/// The participants of a job.
pub(crate) struct Participants {
    pub(crate) observer: Arc<dyn Observer>,
    /// The nodes or receivers as they are displayed.
    pub(crate) shown: watch::Sender<Nodes>,
    /// Name of this node if it leads a cluster, or `None` for a push from one node to several receivers.
    head: Option<String>,
    head_rate: Lock<Rate>,
    receivers: Lock<Vec<(String, Rate)>>,
    /// The other nodes, by name.
    entries: Lock<BTreeMap<String, NodeEntry>>,
    /// The reasons why nodes do not take part, as shown to the user.
    absent: Lock<BTreeSet<(String, String)>>,
    /// The failures that any node has reported.
    pub(crate) seen_failures: Arc<SeenMessages>,
    /// A summary of the other nodes.
    pub(crate) others: watch::Sender<Others>,
}

/// The state of another node.
struct NodeEntry {
    /// The last report of the node.
    part: NodePart,
    heard: Instant,
    /// Whether the user was warned that the node sends no reports.
    is_lost: bool,
    /// Whether the node has left a session that may still be active at its receiver.
    has_lost_sessions: bool,
    /// Number of warnings from the node.
    warnings: u32,
    rate: Rate,
}

impl Participants {
    /// Creates the participants of a job that this node leads. They report to the observer and to `shown`. The `head`
    /// is this node's name in a cluster.
    pub(crate) fn new(
        head: Option<String>,
        receivers: impl IntoIterator<Item = String>,
        observer: Arc<dyn Observer>,
        shown: watch::Sender<Nodes>,
    ) -> Self {
        let receivers = receivers.into_iter().map(|name| (name, Rate::default()));
        Self {
            observer,
            shown,
            head,
            head_rate: Lock::default(),
            receivers: Lock::new(receivers.collect()),
            entries: Lock::default(),
            absent: Lock::default(),
            seen_failures: Arc::default(),
            others: watch::Sender::default(),
        }
    }

    /// Reports once that more nodes offer to take part than the job accepts.
    pub(crate) fn warn_of_too_many(&self) {
        let message =
            format!("more than {NODES_MAX} nodes want to take part: the others get no work");
        if self.seen_failures.report_once(&message) {
            self.observer.on(&Event::Warned { message });
        }
    }

    fn warn_of(&self, node: &str, what: String) {
        let message = format!("{node} {what}");
        self.observer.on(&Event::Warned { message });
    }

    /// Handles the report of a node, which arrives every second.
    pub(crate) fn handle_report(&self, node: &str, part: &NodePart) {
        let has_done_nothing = part.tally.items == 0 && part.moved == TransferProgress::default();
        // A node that could not take part offers to do so again from time to time.
        let is_absent = || self.absent.lock().iter().any(|(absent, _)| absent == node);
        if has_done_nothing && part.state != NodeState::HasLostSessions && is_absent() {
            return;
        }
        let mut entries = self.entries.lock();
        let entry = entries.entry(node.to_owned());
        let entry = entry.or_insert_with(|| NodeEntry::new(part));
        let more = part.moved.since(&entry.part.moved);
        entry.take(part.state);
        entry.part = part.clone();
        entry.heard = Instant::now();
        entry.is_lost = false;
        self.count(&entries);
        drop(entries);
        for event in more.events() {
            self.observer.on(&event);
        }
        if part.state == NodeState::Stopped {
            self.warn_of(node, format!("was stopped: {BY_OTHERS}"));
        }
    }

    /// Reports once why a node does not take part.
    pub(crate) fn report_absent(&self, NodeFailure { node, message, .. }: NodeFailure) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&node) {
            if entry.has_served() || entry.has_lost_sessions {
                entry.take(NodeState::HasLostSessions);
            } else {
                entries.remove(&node);
            }
            self.count(&entries);
        }
        drop(entries);
        let is_news = self.absent.lock().insert((node.clone(), message.clone()));
        if is_news {
            self.warn_of(&node, format!("takes no part: {message}"));
        }
    }

    /// Reports a failure at another node, unless any node has reported it before.
    pub(crate) fn fail(&self, NodeFailure { node, message, .. }: NodeFailure) {
        if self.seen_failures.report_once(without_places(&message)) {
            let message = format!("{message} (at {node})");
            self.observer.on(&Event::Failed { message });
        }
    }

    /// Reports a warning of a node that takes part, up to a limit for each node.
    pub(crate) fn warn(&self, NodeFailure { node, message, .. }: NodeFailure) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&node) else {
            return;
        };
        entry.warnings = entry.warnings.saturating_add(1);
        let message = match entry.warnings.cmp(&WARNINGS_MAX) {
            Ordering::Less => format!("{message} (at {node})"),
            Ordering::Equal => format!("{node} has more warnings: see the output of the node"),
            Ordering::Greater => return,
        };
        drop(entries);
        self.observer.on(&Event::Warned { message });
    }

    /// Shows all participants every second, forever. `served` contains the results of this process.
    pub(crate) async fn show(&self, queue: &impl WorkQueue, served: &SessionResults) -> Infallible {
        let mut ticks = interval(NOTICE_INTERVAL);
        loop {
            ticks.tick().await;
            // If the broker is lost, the request for the number of waiting items must not delay the display.
            let asked = timeout(NOTICE_INTERVAL, queue.waiting()).await;
            let waiting = asked.ok().and_then(Result::ok);
            self.show_now(waiting, served);
        }
    }

    /// Shows all participants immediately. `served` contains the results of this process.
    pub(crate) fn show_now(&self, waiting: Option<u64>, served: &SessionResults) {
        let nodes = self.snapshot(waiting, &served.by_receiver(), Instant::now());
        self.shown.send_replace(nodes);
    }

    fn snapshot(
        &self,
        waiting: Option<u64>,
        own: &BTreeMap<usize, FileTotal>,
        now: Instant,
    ) -> Nodes {
        let mut entries = self.entries.lock();
        for (name, entry) in &mut *entries {
            if entry.is_at_work() && entry.is_unheard_for(LOST_AFTER, now) {
                entry.is_lost = true;
                let after = LOST_AFTER.as_secs();
                self.warn_of(
                    name,
                    format!("has sent no report for {after} s: {BY_OTHERS}"),
                );
            }
        }
        self.count(&entries);
        let mut receivers = self.receivers.lock();
        let receiver_count = receivers.len() as u64;
        let looks = receivers.iter_mut().enumerate();
        let looks = looks.map(|(number, (name, rate))| {
            let by_others = entries.values();
            let by_others = by_others.filter_map(|entry| entry.part.receivers.get(&number));
            let stored = sum(by_others.chain(own.get(&number)));
            rate.sample(name, Pace::Works, stored, now)
        });
        let receivers = compare(looks.collect(), waiting);
        let Some(head) = &self.head else {
            return Nodes {
                kind: Party::Receiver,
                count: receiver_count,
                items_waiting: waiting,
                nodes: receivers,
                receivers: Vec::new(),
            };
        };
        let mut head_rate = self.head_rate.lock();
        let head = head_rate.sample(head, Pace::Works, sum(own.values()), now);
        let looks = entries.iter_mut().map(|(name, entry)| {
            let pace = entry.pace(now);
            entry.rate.sample(name, pace, entry.part.moved.stored, now)
        });
        let looks: Vec<_> = once(head).chain(looks).collect();
        Nodes {
            kind: Party::Node,
            count: looks.len() as u64,
            items_waiting: waiting,
            nodes: compare(looks, waiting),
            receivers,
        }
    }

    fn count(&self, entries: &BTreeMap<String, NodeEntry>) {
        let count = |is: fn(&NodeEntry) -> bool| entries.values().filter(|entry| is(entry)).count();
        let tallies = entries.values().map(|entry| entry.part.tally.clone());
        self.others.send_replace(Others {
            at_work: count(NodeEntry::is_at_work),
            unfinished: count(|entry| !entry.is_finished()),
            tally: tallies.fold(Tally::default(), Tally::and),
        });
    }

    /// Returns the number of nodes that have done some of the work. For a push from one node to several receivers,
    /// returns the number of receivers instead. `served` contains the results of this process.
    pub(crate) fn served(&self, served: &SessionResults) -> usize {
        if self.head.is_none() {
            return served.by_receiver().len();
        }
        let entries = self.entries.lock();
        let others = entries.values().filter(|entry| entry.has_served());
        others.count() + usize::from(served.tally().items > 0)
    }
}

impl NodeEntry {
    /// Creates the entry of a node from its first report, `part`. The entry starts with the state and progress of a
    /// node that has only offered to take part.
    fn new(part: &NodePart) -> Self {
        Self {
            part: NodePart {
                state: NodeState::Offers,
                moved: TransferProgress::default(),
                ..part.clone()
            },
            heard: Instant::now(),
            is_lost: false,
            has_lost_sessions: false,
            warnings: 0,
            rate: Rate::default(),
        }
    }

    /// Sets the state that the node reports. If a node that was at work offers to take part again, the node has
    /// restarted, and its earlier sessions are lost.
    fn take(&mut self, state: NodeState) {
        self.has_lost_sessions |= match state {
            NodeState::Offers => self.part.state == NodeState::Works,
            NodeState::Works | NodeState::HasEnded | NodeState::Stopped => false,
            NodeState::HasLostSessions => true,
        };
        self.part.state = state;
    }

    /// Returns whether the node has finished an item or moved data. A node that was stopped before its first item ended
    /// may have moved data.
    fn has_served(&self) -> bool {
        self.part.tally.items > 0 || self.part.moved.stored != FileTotal::default()
    }

    fn has_ended(&self) -> bool {
        !matches!(self.part.state, NodeState::Offers | NodeState::Works)
    }

    /// Returns whether all sessions of the node have ended properly, according to its reports.
    fn is_finished(&self) -> bool {
        self.has_ended() && !self.has_lost_sessions
    }

    /// Returns whether the node is working on the job, according to its reports.
    fn is_at_work(&self) -> bool {
        !self.has_ended() && !self.is_lost
    }

    fn pace(&self, now: Instant) -> Pace {
        if self.has_ended() {
            Pace::Ended
        } else if self.is_unheard_for(SILENT_AFTER, now) {
            Pace::Silent
        } else {
            Pace::Works
        }
    }

    fn is_unheard_for(&self, span: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) > span
    }
}

fn sum<'a>(totals: impl Iterator<Item = &'a FileTotal>) -> FileTotal {
    totals.fold(FileTotal::default(), |mut sum, total| {
        sum.add(*total);
        sum
    })
}

const BY_OTHERS: &str = "other nodes take over its work";
/// Time without a report after which a node counts as silent. Nodes report every [`NOTICE_INTERVAL`].
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// Time without a report after which the user is warned. The items of the node are leased for twice this time.
const LOST_AFTER: Duration = Duration::from_secs(LEASE.as_secs() / 2);
/// Maximum number of warnings of a node that are reported. Further warnings are dropped.
const WARNINGS_MAX: u32 = 20;

#[cfg(test)]
mod tests {
    use zmove_types::{NoObserver, SharedJobId};

    use super::*;
    use crate::commands::tests::Warnings;

    fn stored(files: u64, bytes: u64) -> TransferProgress {
        TransferProgress {
            stored: FileTotal { files, bytes },
            ..TransferProgress::default()
        }
    }

    fn tally(items: u64) -> Tally {
        let mut tally = Tally::default();
        tally.items = items;
        tally
    }

    fn part(bytes: u64, state: NodeState) -> NodePart {
        let moved = stored(1, bytes);
        NodePart {
            job: SharedJobId::default(),
            state,
            moved,
            tally: tally(1),
            granted_until: None,
            ping: 0,
            receivers: BTreeMap::new(),
        }
    }

    fn paces(nodes: &Nodes) -> Vec<(&str, Pace)> {
        nodes
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.state))
            .collect()
    }

    fn of_nodes(observer: Arc<dyn Observer>) -> Participants {
        let receivers = ["r0", "r1"].map(str::to_owned);
        Participants::new(
            Some("head".into()),
            receivers,
            observer,
            watch::Sender::default(),
        )
    }

    fn snapshot(participants: &Participants, now: Instant) -> Nodes {
        participants.snapshot(None, &BTreeMap::new(), now)
    }

    /// Returns how many other nodes are at work, and how many have not finished.
    fn others(participants: &Participants) -> (usize, usize) {
        let others = participants.others.borrow();
        (others.at_work, others.unfinished)
    }

    #[test]
    fn a_node_that_begins_anew_may_have_lost_sessions() {
        use NodeState::{HasEnded, HasLostSessions, Offers, Stopped, Works};
        for before in [Offers, Works, HasEnded] {
            let after = [
                (Offers, before == Works),
                (Works, false),
                (HasEnded, false),
                (HasLostSessions, true),
                (Stopped, false),
            ];
            for (state, is_lost) in after {
                let mut entry = NodeEntry::new(&part(1, Works));
                entry.take(before);
                entry.take(state);
                assert_eq!(entry.has_lost_sessions, is_lost, "{before:?}, {state:?}");
                assert_eq!(entry.has_ended(), ![Offers, Works].contains(&state));
            }
        }
    }

    #[test]
    fn a_node_that_is_not_heard_of_is_told_once_until_it_is_back() {
        let warnings = Arc::new(Warnings::default());
        let participants = of_nodes(Arc::clone(&warnings) as Arc<dyn Observer>);
        let told_after = |seconds| {
            snapshot(&participants, Instant::now() + Duration::from_secs(seconds));
            warnings.0.lock().len()
        };
        participants.handle_report("n1", &part(1, NodeState::Works));
        assert_eq!([10, 20, 30].map(told_after), [0, 1, 1]);
        assert!(warnings.0.lock()[0].contains("n1 has sent no report for 15 s"));
        participants.handle_report("n1", &part(2, NodeState::Works));
        assert_eq!([1, 20].map(told_after), [1, 2]);
        participants.handle_report("n1", &part(2, NodeState::HasEnded));
        assert_eq!([1, 20].map(told_after), [2, 2]);
        participants.handle_report("n3", &part(0, NodeState::HasEnded));
        participants.handle_report("n2", &part(2, NodeState::Stopped));
        assert_eq!([1, 20].map(told_after), [3, 3]);
        assert!(warnings.0.lock()[2].contains("n2 was stopped"));
        assert_eq!(others(&participants), (0, 0), "its sessions have ended");
    }

    /// Later reports from a node that has left without doing anything are ignored.
    #[test]
    fn a_node_that_has_left_before_it_has_done_anything_is_not_waited_for() {
        let participants = of_nodes(Arc::new(NoObserver));
        let nothing = NodePart {
            tally: tally(0),
            moved: TransferProgress::default(),
            ..part(0, NodeState::Works)
        };
        participants.handle_report("n", &nothing);
        assert_eq!(participants.others.borrow().unfinished, 1);
        participants.report_absent(NodeFailure {
            job: SharedJobId::default(),
            node: "n".into(),
            message: "no".into(),
        });
        participants.handle_report("n", &nothing);
        assert_eq!(participants.others.borrow().unfinished, 0);
        let found = TransferProgress {
            found: FileTotal { files: 1, bytes: 0 },
            ..TransferProgress::default()
        };
        participants.handle_report(
            "n",
            &NodePart {
                moved: found,
                ..nothing
            },
        );
        assert_eq!(participants.others.borrow().unfinished, 1, "by another try");
    }

    #[test]
    fn a_node_that_names_itself_by_thousands_of_names_is_not_listened_to_without_end() {
        let warnings = Arc::new(Warnings::default());
        let participants = of_nodes(Arc::clone(&warnings) as Arc<dyn Observer>);
        (0..3).for_each(|_| participants.warn_of_too_many());
        assert_eq!(warnings.0.lock().len(), 1);
        (0..200).for_each(|name| {
            participants.handle_report(&name.to_string(), &part(1, NodeState::Works))
        });
        let shown = snapshot(&participants, Instant::now());
        assert_eq!((shown.nodes.len(), shown.count), (rates::NODES_MAX, 201));
    }

    #[test]
    fn what_nodes_warn_of_is_told_with_their_names_and_none_floods_the_user() {
        let warnings = Arc::new(Warnings::default());
        let participants = of_nodes(Arc::clone(&warnings) as Arc<dyn Observer>);
        let warn = |node: &str, number| {
            participants.warn(NodeFailure {
                job: SharedJobId::default(),
                node: node.into(),
                message: format!("lost {number}"),
            });
            warnings.0.lock().len()
        };
        assert_eq!(warn("stranger", 0), 0, "it takes no part");
        ["n1", "n2"]
            .into_iter()
            .for_each(|node| participants.handle_report(node, &part(1, NodeState::Works)));
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
        assert_eq!(told[19], "n1 has more warnings: see the output of the node");
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
            participants.handle_report(node, &part);
        };
        tells("n1", &[(0, 10)]);
        tells("n1", &[(0, 15), (1, 100)]);
        tells("n2", &[(1, 1000)]);
        let own = BTreeMap::from([(0, total(7))]);
        let looked = participants.snapshot(None, &own, Instant::now());
        let bytes = looked
            .receivers
            .iter()
            .map(|node| (node.name.as_str(), node.bytes));
        assert_eq!(bytes.collect::<Vec<_>>(), [("r0", 22), ("r1", 1100)]);
    }

    #[test]
    fn of_one_node_the_receivers_are_shown() {
        let names = ["r0", "r1"].map(str::to_owned);
        let observer = Arc::new(NoObserver);
        let participants = Participants::new(None, names, observer, watch::Sender::default());
        let looked = snapshot(&participants, Instant::now());
        assert_eq!((looked.kind, looked.count), (Party::Receiver, 2));
        assert_eq!(looked.nodes.len(), 2);
    }

    #[test]
    fn a_node_that_says_nothing_is_silent_unless_it_has_ended_or_was_stopped() {
        let participants = of_nodes(Arc::new(NoObserver));
        let began = Instant::now();
        participants.handle_report("n1", &part(10, NodeState::Works));
        participants.handle_report("n2", &part(10, NodeState::HasEnded));
        participants.handle_report("n3", &part(10, NodeState::Stopped));
        assert_eq!(snapshot(&participants, began).nodes[1].state, Pace::Works);
        let later = snapshot(&participants, began + SILENT_AFTER + Duration::from_secs(2));
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
            job: SharedJobId::default(),
            node: node.into(),
            message: "it is tired".into(),
        }
    }

    #[test]
    fn who_has_moved_something_is_counted_also_if_it_stops_then_and_who_has_not_is_not() {
        let participants = of_nodes(Arc::new(NoObserver));
        let told = |files, items| NodePart {
            moved: stored(files, 0),
            tally: tally(items),
            ..part(0, NodeState::Works)
        };
        participants.handle_report("walks", &told(0, 3));
        participants.handle_report("stops", &told(7, 0));
        participants.handle_report("refused", &told(0, 0));
        assert_eq!(participants.others.borrow().unfinished, 3);
        ["stops", "refused"]
            .into_iter()
            .for_each(|node| participants.report_absent(absent(node)));
        assert_eq!(participants.served(&SessionResults::default()), 2);
        assert_eq!(
            others(&participants),
            (1, 2),
            "one that has left may have sessions still"
        );
        participants.handle_report(
            "refused",
            &NodePart {
                state: NodeState::HasLostSessions,
                ..told(0, 0)
            },
        );
        assert_eq!(participants.others.borrow().unfinished, 3);
        let ended = NodePart {
            state: NodeState::HasEnded,
            ..told(7, 3)
        };
        ["walks", "stops", "refused"]
            .into_iter()
            .for_each(|node| participants.handle_report(node, &ended));
        assert_eq!(
            others(&participants),
            (0, 2),
            "sessions of before stay lost"
        );
    }

    #[test]
    fn a_failure_is_told_once_whichever_node_tells_it() {
        let heard = Arc::new(Heard::default());
        let participants = of_nodes(Arc::clone(&heard) as Arc<dyn Observer>);
        let fail = |file: &str, at: &str| {
            let message = format!("receiver: write '{file}': full{at}");
            participants.fail(NodeFailure {
                message,
                ..absent("n")
            });
            heard.0.lock().len()
        };
        let head = &participants.seen_failures;
        assert!(head.report_once("receiver: write 'w': full"));
        assert_eq!(fail("w", " (at 10.0.0.1:7)"), 0, "the head has told it");
        let places = ["", " (at 10.0.0.1:7)", " (at 10.0.0.2:7)"];
        assert_eq!(places.map(|at| fail("x", at)), [1, 1, 1]);
        assert_eq!(fail("y", ""), 2);
    }
}
