//! Which queued jobs begin: the most urgent first, as many as there is room for.

use std::collections::HashMap;

use crate::store::Queued;

/// How many jobs run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub all: usize,
    /// With the same other host; those within this host are counted together too.
    pub host: usize,
    /// With the same target.
    pub target: usize,
}

/// The jobs that run or are about to, counted.
#[derive(Debug)]
pub(super) struct Choice {
    limits: Limits,
    all: usize,
    hosts: HashMap<String, usize>,
    targets: HashMap<String, usize>,
    /// Source and target: the same job is never done twice at once, whatever the limits.
    pairs: HashMap<(String, String), usize>,
    pub(super) chosen: Vec<Queued>,
}

impl Choice {
    pub(super) fn new<'a>(limits: Limits, running: impl IntoIterator<Item = &'a Queued>) -> Self {
        let mut choice = Self {
            limits,
            all: 0,
            hosts: HashMap::new(),
            targets: HashMap::new(),
            pairs: HashMap::new(),
            chosen: Vec::new(),
        };
        running.into_iter().for_each(|job| choice.count(job));
        choice
    }

    fn count(&mut self, job: &Queued) {
        self.all += 1;
        *self.hosts.entry(job.host.clone()).or_default() += 1;
        *self.targets.entry(job.target.clone()).or_default() += 1;
        *self.pairs.entry((job.source.clone(), job.target.clone())).or_default() += 1;
    }

    /// Whether there is room for any job.
    pub(super) fn has_room(&self) -> bool {
        self.all < self.limits.all
    }

    /// Chooses a job, if there is room for it.
    pub(super) fn offer(&mut self, job: Queued) {
        let of_host = self.hosts.get(&job.host).copied().unwrap_or(0);
        let of_target = self.targets.get(&job.target).copied().unwrap_or(0);
        let is_there = self.pairs.contains_key(&(job.source.clone(), job.target.clone()));
        if self.has_room() && of_host < self.limits.host && of_target < self.limits.target && !is_there {
            self.count(&job);
            self.chosen.push(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    fn job(id: i64, host: &str, target: &str) -> Queued {
        Queued { id: JobId(id), host: host.into(), source: format!("s{id}"), target: target.into() }
    }

    #[test]
    fn no_limit_is_passed_and_none_holds_up_others() {
        let limits = Limits { all: 5, host: 2, target: 1 };
        let running = [job(1, "a", "x")];
        let mut choice = Choice::new(limits, &running);
        let queued =
            [(2, "a", "x"), (3, "a", "y"), (4, "a", "z"), (5, "b", "u"), (6, "c", "v"), (7, "d", "w")];
        queued.into_iter().for_each(|(id, host, target)| choice.offer(job(id, host, target)));
        let chosen: Vec<_> = choice.chosen.iter().map(|job| job.id.0).collect();
        assert_eq!(chosen, [3, 5, 6, 7]);
        assert!(!choice.has_room());
    }

    #[test]
    fn the_same_transfer_is_not_done_twice_at_once() {
        let limits = Limits { all: 5, host: 5, target: 5 };
        let running = [job(1, "a", "x")];
        let mut choice = Choice::new(limits, &running);
        choice.offer(Queued { id: JobId(2), ..job(1, "a", "x") });
        assert_eq!(choice.chosen, []);
    }
}
