//! Messages of a peer with what they take, from when they are decoded until they are answered.

use zmove_transport::{ControlReader, Inbox};
use zmove_wire::{TargetShape, ToReceiver, WireError, decode_message};

use crate::account::{Account, Held};

/// A message, and what it takes.
#[derive(Debug)]
pub(crate) struct Booked {
    pub(crate) message: ToReceiver,
    pub(crate) held: Held,
}

/// The messages of one session as they arrive.
pub(crate) type Messages = Inbox<Booked>;

/// Reads the messages of a session; one that is beyond what its key may keep ends it.
pub(crate) fn messages(reader: ControlReader, account: Account) -> Messages {
    let decode = move |bytes: &[u8]| {
        // nothing is decoded for which there is no room as it stands
        let mut held = account.hold_memory(bytes.len())?;
        let message = decode_message(bytes)?;
        held.grow(ELEMENT_BYTES * elements(&message))?;
        Ok::<_, WireError>(Booked { message, held })
    };
    reader.into_inbox(decode, MESSAGES_MAX)
}

/// How many wait.
const MESSAGES_MAX: usize = 16;

/// What an element of a list takes beside the bytes of its name: its fields, and what the allocator adds for the name.
const ELEMENT_BYTES: usize = 128;

/// How many elements a message has in all its lists.
fn elements(message: &ToReceiver) -> usize {
    match message {
        ToReceiver::Open(open) => match &open.shape {
            TargetShape::Directory { tops } => tops.len(),
            TargetShape::Single { .. } => 1,
        },
        ToReceiver::Offer(offer) => {
            offer.groups.len() + offer.groups.iter().map(|group| group.files.len()).sum::<usize>()
        }
        ToReceiver::Inquire(inquiry) => {
            inquiry.groups.len() + inquiry.groups.iter().map(|group| group.entries.len()).sum::<usize>()
        }
        ToReceiver::Keep(keep) => {
            keep.ranges.len() + keep.ranges.iter().map(|range| range.names.len()).sum::<usize>()
        }
        ToReceiver::Remove(remove) => {
            remove.groups.len() + remove.groups.iter().map(|group| group.names.len()).sum::<usize>()
        }
        _ => 0,
    }
}
