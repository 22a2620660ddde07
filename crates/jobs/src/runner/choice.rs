//! Chooses the queued jobs to start. Jobs of higher priority come first. Among jobs of equal priority, the kind with
//! the fewest running jobs comes first.
//!
//! A runner executes the jobs of a single user. The fairness rule ensures that five hundred jobs of one kind do not
//! delay jobs of other kinds that were submitted later. Jobs are of the same kind if the user gave them the same label.
//! Jobs without a label are of the same kind if their sources are in the same directory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;

use crate::store::QueuedJob;

/// Limits of concurrent jobs. Jobs that watch their sources are not counted, because they would occupy a slot forever
/// and are idle most of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of jobs.
    pub all: usize,
    /// Maximum number of jobs with the same remote host. Jobs without a remote host are counted together.
    pub host: usize,
    /// Maximum number of jobs with the same target.
    pub target: usize,
    /// Maximum number of jobs that use the same key. Each home directory (`ZMOVE_HOME`) has one key.
    pub key: usize,
}

/// The choice of jobs to start, with counts of the running and the chosen jobs.
#[derive(Debug, Default)]
pub(super) struct JobSelection {
    limits: Limits,
    all: usize,
    hosts: HashMap<String, usize>,
    targets: HashMap<String, usize>,
    keys: HashMap<OsString, usize>,
    kinds: HashMap<String, usize>,
    /// Source and target. Two jobs with the same source and target never run at the same time, whatever the limits.
    pairs: HashMap<(String, String), usize>,
    chosen: Vec<QueuedJob>,
    /// Jobs of the current priority, by kind. They are collected until a job with another priority is offered.
    candidates: BTreeMap<String, VecDeque<QueuedJob>>,
    /// Number of offered jobs with the same kind, host and target. Offering more than `limits.all` of them is useless,
    /// because they could never start.
    offered: HashMap<[String; 3], usize>,
    priority: Option<i32>,
}

impl JobSelection {
    pub(super) fn new<'a>(
        limits: Limits,
        running: impl IntoIterator<Item = &'a QueuedJob>,
    ) -> Self {
        let mut choice = Self {
            limits,
            ..Self::default()
        };
        running.into_iter().for_each(|job| choice.count(job));
        choice
    }

    fn count(&mut self, job: &QueuedJob) {
        *self
            .pairs
            .entry((job.source.clone(), job.target.clone()))
            .or_default() += 1;
        if job.watches {
            return;
        }
        self.all += 1;
        *self.hosts.entry(job.host.clone()).or_default() += 1;
        *self.targets.entry(job.target.clone()).or_default() += 1;
        *self.keys.entry(job.home.clone()).or_default() += 1;
        *self.kinds.entry(kind(job)).or_default() += 1;
    }

    /// Returns whether the limit of all jobs allows another job.
    pub(super) fn has_room(&self) -> bool {
        self.all < self.limits.all
    }

    fn has_room_for(&self, job: &QueuedJob) -> bool {
        if self
            .pairs
            .contains_key(&(job.source.clone(), job.target.clone()))
        {
            return false;
        }
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        job.watches
            || self.has_room()
                && of(self.hosts.get(&job.host)) < self.limits.host
                && of(self.targets.get(&job.target)) < self.limits.target
                && of(self.keys.get(&job.home)) < self.limits.key
    }

    /// Offers the next job. Jobs must be offered in the order of priority.
    pub(super) fn offer(&mut self, job: QueuedJob) {
        if self.priority != Some(job.priority) {
            self.choose();
            self.priority = Some(job.priority);
        }
        if !self.has_room_for(&job) {
            return;
        }
        let kind = kind(&job);
        // Without a limit per target, jobs are counted together whatever their target.
        let target = if self.limits.target == usize::MAX {
            String::new()
        } else {
            job.target.clone()
        };
        let alike = self
            .offered
            .entry([kind.clone(), job.host.clone(), target])
            .or_default();
        if *alike < self.limits.all || job.watches {
            *alike += 1;
            self.candidates.entry(kind).or_default().push_back(job);
        }
    }

    /// Chooses among jobs of equal priority. Each iteration takes the first job of the kind that has the fewest running
    /// jobs.
    fn choose(&mut self) {
        self.offered.clear();
        let mut candidates = std::mem::take(&mut self.candidates);
        loop {
            for jobs in candidates.values_mut() {
                while jobs.front().is_some_and(|job| !self.has_room_for(job)) {
                    jobs.pop_front();
                }
            }
            let next = candidates.iter_mut().filter_map(|(kind, jobs)| {
                let first = jobs.front()?.id;
                Some(((self.kinds.get(kind).copied().unwrap_or(0), first), jobs))
            });
            let Some(job) = next
                .min_by_key(|(rank, _)| *rank)
                .and_then(|(_, jobs)| jobs.pop_front())
            else {
                return;
            };
            self.count(&job);
            self.chosen.push(job);
        }
    }

    /// Returns the jobs to start.
    pub(super) fn chosen(mut self) -> Vec<QueuedJob> {
        self.choose();
        self.chosen
    }
}

/// Returns the kind of a job: the label, or the source's directory if the label is only the source's name.
fn kind(job: &QueuedJob) -> String {
    let source = job.source.trim_end_matches('/');
    match source.strip_suffix(job.label.as_str()) {
        Some(directory) if directory.is_empty() || directory.ends_with(['/', ':']) => {
            directory.to_owned()
        }
        _ => job.label.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    fn job(id: i64, host: &str, target: &str) -> QueuedJob {
        QueuedJob {
            id: JobId(id),
            host: host.into(),
            source: format!("/s/{id}"),
            target: target.into(),
            label: id.to_string(),
            priority: 0,
            home: OsString::new(),
            watches: false,
        }
    }

    const LIMITS: Limits = Limits {
        all: 5,
        host: 5,
        target: 5,
        key: 5,
    };

    fn chosen(
        limits: Limits,
        running: &[QueuedJob],
        queued: impl IntoIterator<Item = QueuedJob>,
    ) -> Vec<i64> {
        let mut choice = JobSelection::new(limits, running);
        queued.into_iter().for_each(|job| choice.offer(job));
        choice.chosen().iter().map(|job| job.id.0).collect()
    }

    #[test]
    fn no_limit_is_passed_and_none_holds_up_others() {
        let limits = Limits {
            all: 5,
            host: 2,
            target: 1,
            key: 5,
        };
        let queued = [
            (2, "a", "x"),
            (3, "a", "y"),
            (4, "a", "z"),
            (5, "b", "u"),
            (6, "c", "v"),
            (7, "d", "w"),
        ];
        let queued = queued.map(|(id, host, target)| job(id, host, target));
        assert_eq!(chosen(limits, &[job(1, "a", "x")], queued), [3, 5, 6, 7]);
    }

    #[test]
    fn a_key_has_its_limit_too() {
        let limits = Limits { key: 1, ..LIMITS };
        let of = |id, home: &str| QueuedJob {
            home: home.into(),
            ..job(id, "h", &id.to_string())
        };
        let queued = [of(2, "a"), of(3, "b"), of(4, "b"), of(5, "")];
        assert_eq!(chosen(limits, &[of(1, "a")], queued), [3, 5]);
    }

    #[test]
    fn the_same_transfer_is_not_done_twice_at_once() {
        let again = QueuedJob {
            id: JobId(2),
            ..job(1, "a", "x")
        };
        let first = job(1, "a", "x");
        assert_eq!(
            chosen(LIMITS, std::slice::from_ref(&first), [again.clone()]),
            [] as [i64; 0]
        );
        assert_eq!(chosen(LIMITS, &[], [first, again]), [1]);
    }

    #[test]
    fn many_jobs_of_one_kind_do_not_keep_others_waiting() {
        let labelled = |id, label: &str| QueuedJob {
            label: label.into(),
            ..job(id, "h", &id.to_string())
        };
        let many = (1..=500).map(|id| job(id, "h", &id.to_string()));
        let few = [labelled(501, "x"), labelled(502, "y"), labelled(503, "x")];
        assert_eq!(
            chosen(LIMITS, &[], many.clone().chain(few.clone())),
            [1, 501, 502, 2, 503]
        );
        let running = [job(600, "h", "r"), job(601, "h", "s")];
        assert_eq!(chosen(LIMITS, &running, many.chain(few)), [501, 502, 503]);
    }

    #[test]
    fn who_is_more_urgent_comes_first_whatever_its_kind() {
        let urgent = |id, priority| QueuedJob {
            priority,
            ..job(id, "h", &id.to_string())
        };
        let queued = [
            urgent(9, 2),
            urgent(8, 2),
            urgent(1, 0),
            urgent(2, 0),
            urgent(3, 0),
            urgent(4, 0),
        ];
        assert_eq!(chosen(LIMITS, &[], queued), [9, 8, 1, 2, 3].map(i64::from));
    }

    #[test]
    fn who_watches_takes_no_room() {
        let watches = |id| QueuedJob {
            watches: true,
            ..job(id, "h", &id.to_string())
        };
        let running: Vec<_> = (1..9).map(watches).collect();
        assert_eq!(
            chosen(
                Limits { all: 1, ..LIMITS },
                &running,
                [job(10, "h", "x"), watches(11)]
            ),
            [10, 11]
        );
    }

    #[test]
    fn a_label_of_its_own_is_a_kind() {
        let of = |source: &str, label: &str| {
            kind(&QueuedJob {
                source: source.into(),
                label: label.into(),
                ..job(1, "", "")
            })
        };
        assert_eq!(of("/data/runs/r7/", "r7"), "/data/runs/");
        assert_eq!(of("h:r7", "r7"), "h:");
        assert_eq!(of("/data/runs/r7", "night"), "night");
        assert_eq!(of("/data/runs/r7", "7"), "7");
    }
}
