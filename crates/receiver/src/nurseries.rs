//! The nurseries that are open: new directories that are being filled, perhaps by several writers and from several batches.
//!
//! A file in a nursery has no final name yet, so its batch is settled only when the nursery has been published.
//! **Invariant:** a writer that waits for work has published all that nobody else is filling, so when all of them wait,
//! none is open and every batch that has come is settled.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_disk::Nursery;
use zmove_types::{ItemId, RelPath};
use zmove_wire::{EntryFault, FaultCode, FileEntry, Operation};

use crate::place::Known;
use crate::store::Context;
use crate::untouched::Untouched;

/// The nurseries of a transfer, shared by all writers.
#[derive(Debug, Default)]
pub(crate) struct Nurseries(Mutex<HashMap<RelPath, Open>>);

#[derive(Debug)]
struct Open {
    nursery: Arc<Nursery>,
    /// Writers that are filling it. One that panics stays among them, so that nothing of its file is ever published.
    filling: usize,
    begun: Instant,
    filled: Vec<Filled>,
    /// Whether something is in it that must not get its name.
    spoiled: bool,
}

/// The files of one batch that are whole in a nursery.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) batch: Arc<Unsettled>,
    /// With their numbers in the batch.
    pub(crate) files: Vec<(u32, FileEntry)>,
}

/// A nursery that nobody fills any more.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) path: RelPath,
    pub(crate) filled: Vec<Filled>,
    pub(crate) fate: Fate,
}

/// What has become of a nursery.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It is the directory now.
    Published(Arc<OwnedFd>),
    /// The directory is no longer what it was: the files go there one by one.
    Overtaken(Nursery),
}

/// A batch that has been taken on. It is settled when the last who holds it [lets go](Unsettled::release).
#[derive(Debug)]
pub(crate) struct Unsettled {
    item: ItemId,
    pub(crate) known: Known,
    faults: Mutex<Vec<EntryFault>>,
}

/// Open at once. Each holds two descriptors.
const OPEN_MAX: usize = 8;

/// How long the files of a nursery wait for more. A process that is killed loses so much, and the sender waits so long to
/// hear of them.
const OPEN_TIME_MAX: Duration = Duration::from_millis(500);

impl Nurseries {
    /// The open nursery of a directory, unless it has been open for long.
    pub(crate) fn join(&self, path: &RelPath) -> Option<Arc<Nursery>> {
        self.lock().get_mut(path)?.enter()
    }

    /// The nursery of a directory that is still untouched: the open one, else what `begin` makes.
    pub(crate) fn begin(
        &self,
        path: &RelPath,
        untouched: &Untouched,
        begin: impl FnOnce() -> io::Result<Option<Nursery>>,
    ) -> Option<Arc<Nursery>> {
        let mut nurseries = self.lock();
        if let Some(open) = nurseries.get_mut(path) {
            return open.enter();
        }
        if !untouched.holds(path) {
            return None;
        }
        let nursery = Arc::new(begin().ok()??);
        let (filled, begun) = (Vec::new(), Instant::now());
        let open = Open { nursery, filling: 0, begun, filled, spoiled: false };
        nurseries.entry(path.clone()).or_insert(open).enter()
    }

    /// A writer is done with a nursery for now.
    pub(crate) fn leave(&self, path: &RelPath, nursery: Arc<Nursery>, filled: Filled, spoiled: bool) {
        let mut nurseries = self.lock();
        let open = nurseries.get_mut(path).expect("one that is being filled is not closed");
        open.filled.push(filled);
        open.spoiled |= spoiled;
        open.filling -= 1;
        // under the lock: when nobody fills it nobody holds it
        drop(nursery);
    }

    /// Closes those that nobody is filling and that are chosen.
    pub(crate) fn close(
        &self,
        untouched: &Untouched,
        mut chosen: impl FnMut(&RelPath) -> bool,
    ) -> Vec<Closed> {
        close(&mut self.lock(), untouched, |path, _begun| chosen(path))
    }

    /// Closes those that have been open for long.
    pub(crate) fn close_old(&self, untouched: &Untouched) -> Vec<Closed> {
        close(&mut self.lock(), untouched, |_path, begun| is_old(begun))
    }

    /// Closes the oldest if so many are open that another would be too many.
    pub(crate) fn close_for_another(&self, untouched: &Untouched) -> Vec<Closed> {
        let mut nurseries = self.lock();
        if nurseries.len() < OPEN_MAX {
            return Vec::new();
        }
        let idle = nurseries.values().filter(|open| open.filling == 0);
        let Some(oldest) = idle.map(|open| open.begun).min() else { return Vec::new() };
        close(&mut nurseries, untouched, |_path, begun| begun == oldest)
    }

    /// As if half a second had passed.
    #[cfg(test)]
    pub(crate) fn make_old(&self) {
        self.lock().values_mut().for_each(|open| open.begun -= 2 * OPEN_TIME_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RelPath, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn enter(&mut self) -> Option<Arc<Nursery>> {
        if is_old(self.begun) {
            return None;
        }
        self.filling += 1;
        Some(Arc::clone(&self.nursery))
    }
}

fn is_old(begun: Instant) -> bool {
    begun.elapsed() > OPEN_TIME_MAX
}

fn close(
    nurseries: &mut HashMap<RelPath, Open>,
    untouched: &Untouched,
    mut chosen: impl FnMut(&RelPath, Instant) -> bool,
) -> Vec<Closed> {
    let closed =
        nurseries.extract_if(|path, open| open.filling == 0 && chosen(path, open.begun)).collect::<Vec<_>>();
    let end = |(path, Open { nursery, filled, spoiled, .. }): (RelPath, Open)| {
        let mut nursery = Arc::into_inner(nursery).expect("nobody fills it");
        let directory = if spoiled { None } else { untouched.replace(&path, || nursery.publish()) };
        let fate = directory.map_or(Fate::Overtaken(nursery), Fate::Published);
        Closed { path, filled, fate }
    };
    closed.into_iter().map(end).collect()
}

impl Unsettled {
    pub(crate) fn new(item: ItemId, known: Known) -> Arc<Self> {
        Arc::new(Self { item, known, faults: Mutex::default() })
    }

    /// One of its entries cannot be placed.
    pub(crate) fn fault(&self, entry: u32, (operation, code): (Operation, FaultCode)) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.push(EntryFault { entry, operation, code });
    }

    /// The sender is told of it when nobody holds it any more.
    pub(crate) fn release(self: Arc<Self>, context: &Context) {
        let Some(batch) = Arc::into_inner(self) else { return };
        context.settle(batch.item, batch.faults.into_inner().unwrap_or_else(PoisonError::into_inner));
    }

    #[cfg(test)]
    pub(crate) fn faults(&self) -> Vec<EntryFault> {
        self.faults.lock().unwrap().clone()
    }
}
