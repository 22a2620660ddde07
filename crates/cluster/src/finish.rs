//! The last that is done in a job: directories get mode and time, when nothing more is put into them.
//!
//! The head does so in its own session: so much is little beside the files, and what it does itself the queue need not
//! bring to an end.

use futures_util::future::try_join_all;
use rustix::io::Errno;
use zmove_scan::{MarkedPath, Portion, PortionSize, Wanted, walk_portion};
use zmove_sender::Feeder;
use zmove_types::{Event, Observer, RelPath};
use zmove_wire::{Batch, EntryFault, Fault, FaultCode, SharedJobOrder, SharedJobResult};

use crate::error::{Stop, refused};
use crate::job::{ITEM, SharedJob};

/// Sets mode and time of all directories, those below a directory before it, which they may take away the right to
/// enter; returns how many did not get them. Failures are told.
pub(crate) async fn finish(job: &SharedJob, feeder: &Feeder, observer: &dyn Observer) -> Result<u64, Stop> {
    let mut failed = 0;
    for source in 0..job.source_count() {
        let mark = usize::try_from(source).ok().and_then(|number| *job.source_marks.get(number)?);
        let mut steps = vec![Step::Walk(MarkedPath { path: RelPath::root(), mark })];
        while let Some(step) = steps.pop() {
            match step {
                Step::Walk(first) => {
                    let portions = walk(job, source, &with_next(first, &mut steps)).await?;
                    let mut below = Vec::new();
                    for portion in portions {
                        // what else cannot be walked has been told when it was sent
                        if let Some(difference) = portion.difference() {
                            failed += 1;
                            tell(observer, difference.to_string());
                        }
                        let heads = feeder.directory_heads(portion.items).await?;
                        steps.extend(heads.into_iter().map(Step::Set));
                        below.extend(portion.directories);
                    }
                    steps.extend(below.into_iter().rev().map(Step::Walk));
                }
                Step::Set(head) => failed += set(feeder, observer, head).await?,
            }
        }
    }
    Ok(failed)
}

/// What is to be done next, before all that has been found before.
enum Step {
    /// To look for directories below this one.
    Walk(MarkedPath),
    /// To send this head of an order.
    Set(Vec<u8>),
}

/// Takes the places that are to be walked next.
fn with_next(first: MarkedPath, steps: &mut Vec<Step>) -> Vec<MarkedPath> {
    let mut places = vec![first];
    while places.len() < PLACES_AT_ONCE
        && let Some(Step::Walk(next)) = steps.pop_if(|next| matches!(next, Step::Walk(_)))
    {
        places.push(next);
    }
    places
}

/// Walks several portions at once: storage on other hosts takes its time for each directory.
async fn walk(job: &SharedJob, source: u32, places: &[MarkedPath]) -> Result<Vec<Portion>, Stop> {
    let size = PortionSize { wanted: Wanted::Directories, ..ITEM };
    let walks = places.chunks(places.len().div_ceil(WALKS_AT_ONCE)).map(|places| {
        let places = places.to_vec();
        job.scan(source, move |root, config| walk_portion(root, &places, size, config))
    });
    try_join_all(walks).await
}

/// Has the receiver set mode and time of directories; returns how many did not get them.
async fn set(feeder: &Feeder, observer: &dyn Observer, head: Vec<u8>) -> Result<u64, Stop> {
    // each group is one directory itself
    let directories = Batch::decode(&head, 0).map_err(|_own| OWN_HEAD)?.groups;
    match feeder.order(SharedJobOrder::SetDirectories { head }, None).await? {
        SharedJobResult::DirectoriesSet(faults) => {
            for EntryFault { entry, operation, code } in &faults {
                let number = usize::try_from(*entry).unwrap_or(usize::MAX);
                let path = directories.get(number).ok_or(NO_ENTRY)?.directory.clone();
                let fault = Fault { path, operation: *operation, code: *code };
                let came_later = match code {
                    // one that was found before has been made, or that has failed and been told
                    FaultCode::Os(NO_SUCH_FILE) => CAME_LATER,
                    _ => "",
                };
                tell(observer, format!("receiver: {fault}{came_later}"));
            }
            Ok(faults.len() as u64)
        }
        other => Err(refused(other)),
    }
}

fn tell(observer: &dyn Observer, message: String) {
    observer.on(&Event::Failed { message });
}

const OWN_HEAD: Stop = Stop::Nonsense("the head of an order cannot be read that was made here");
const NO_ENTRY: Stop = Stop::Nonsense("the receiver tells the fault of a directory that it was not sent");
const NO_SUCH_FILE: i32 = Errno::NOENT.raw_os_error();
const CAME_LATER: &str = ": it came while the push ran, or was removed; the same command sends what is there";
/// How many directories are taken at once: all that wait may be very many.
const PLACES_AT_ONCE: usize = 1000;
const WALKS_AT_ONCE: usize = 8;
