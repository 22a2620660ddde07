//! Resends items that were damaged, lost with their lane, or late.
//!
//! Damaged data is resent a few times, and each resend is reported to the user. TLS and TCP detect damage in the
//! network, so damaged data usually indicates faulty memory or a faulty program. On an unencrypted lane, it may also
//! indicate an attacker on the path. A lost item is resent under a new number. A late item is resent under its own
//! number (see [`record`](crate::send::in_flight)).

use zmove_types::{Escaped, Event, RelPath};
use zmove_wire::EntryFault;

use crate::plan::pack::Pack;
use crate::plan::queue::Queue;
use crate::push::session::Session;
use crate::send::sent::{Sent, SentBatch};

/// Resends a damaged item and reports that.
pub(crate) fn send_damaged(session: &Session, work: Sent, tries: u8, faults: &[EntryFault]) {
    session.account.totals.counters.resent.add(1);
    let what = match &work {
        Sent::Batch(batch) => describe(batch, faults),
        Sent::Group(file, span, _) => {
            let end = span.offset() + u64::from(span.len);
            format!(
                "bytes {} to {end} of '{}'",
                span.offset(),
                Escaped::path(&file.display())
            )
        }
    };
    session.account.report(Event::Resent { what });
    send_again(&session.queue, work, tries);
}

/// Resends an item that was lost with its lane.
pub(crate) fn send_lost(session: &Session, work: Sent, tries: u8) {
    session.account.totals.counters.repeated.add(1);
    send_again(&session.queue, work, tries);
}

/// Queues late chunks to be read again and sent a second time under their existing items. The second copies go to idle
/// lanes once all work has been issued. `stuck` returns whether data sent by a lane has not arrived.
pub(crate) fn send_late(session: &Session, stuck: impl Fn(usize) -> bool) {
    for (file, span) in session.in_flight.choose_late(stuck) {
        // Reading the group again is not counted as planned work, so the push may end in the meantime.
        session.account.totals.counters.repeated.add(1);
        session.queue.repeat_group(file, span);
    }
}

fn send_again(queue: &Queue, work: Sent, tries: u8) {
    match work {
        Sent::Batch(batch) => queue.repeat_pack(Pack {
            tries,
            ..batch.pack
        }),
        Sent::Group(file, span, _) => {
            file.note_missing(span);
            file.set_tries(span, tries);
            queue.repeat_group(file, span);
        }
    }
}

/// Describes the damaged files, as far as the receiver could name them.
fn describe(batch: &SentBatch, faults: &[EntryFault]) -> String {
    let path = |fault: &EntryFault| {
        batch
            .pack
            .target_path(fault.entry)
            .unwrap_or_else(RelPath::root)
    };
    match (faults, batch.files.as_slice()) {
        ([only], _) => format!("'{}'", path(only)),
        ([first, rest @ ..], _) => format!("'{}' and {} more", path(first), rest.len()),
        ([], []) => "a batch of directories and links".to_owned(),
        ([], [only]) => format!("'{}'", only.path),
        ([], [first, rest @ ..]) => format!("a batch of '{}' and {} more", first.path, rest.len()),
    }
}
