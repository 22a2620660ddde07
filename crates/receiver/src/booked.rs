//! Messages of a peer with what they take, from when they are decoded until they are answered.

use std::cell::Cell;

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

/// Reads the messages of a session; one that is beyond what its key may keep ends it, and so does a second opening: its names
/// would wait, as many as there are messages in the queue, where the first one's are dropped once the target is open.
pub(crate) fn messages(reader: ControlReader, account: Account) -> Messages {
    let opened = Cell::new(false);
    let decode = move |bytes: &[u8]| {
        // nothing is decoded for which there is no room as it stands
        let mut held = account.hold_memory(bytes.len())?;
        let message = decode_message(bytes)?;
        if matches!(message, ToReceiver::Open(_) | ToReceiver::OpenWith(..)) && opened.replace(true) {
            return Err(WireError::OutOfOrder { what: "a second opening" });
        }
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
        ToReceiver::Open(open) | ToReceiver::OpenWith(open, _) => match &open.shape {
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
        ToReceiver::LaneLost { items } => items.len(),
        ToReceiver::Abandon { .. }
        | ToReceiver::Announce { .. }
        | ToReceiver::Sample { .. }
        | ToReceiver::Sweep(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use zmove_types::Name;
    use zmove_wire::{
        Compare, Durability, Extensions, Extraneous, Open, Overwrite, Purpose, TopName, encode_message,
    };

    fn open(names: usize) -> Open {
        let name = |number| TopName(Name::from_bytes(format!("{number}").as_bytes()).unwrap());
        Open {
            target: Vec::new(),
            shape: TargetShape::Directory { tops: (0..names).map(name).collect() },
            compare: Compare::Quick,
            durability: Durability::None,
            delta: false,
            run: [0; 16],
            overwrite: Overwrite::Differing,
            purpose: Purpose::Move,
            extraneous: Extraneous::Stays,
            inplace: false,
        }
    }

    /// What a session makes of messages of which an account has room for so many bytes.
    async fn read(said: &[ToReceiver], account: &Account) -> Vec<Result<Booked, String>> {
        let (mut peer, own) = tokio::io::duplex(1 << 20);
        let mut inbox = messages(zmove_transport::control_pair(own).0, account.clone());
        for message in said {
            peer.write_all(&encode_message(message)).await.unwrap();
        }
        peer.shutdown().await.unwrap();
        let mut read = Vec::new();
        while let Some(message) = inbox.recv().await {
            read.push(message.map_err(|error| error.to_string()));
        }
        read
    }

    #[tokio::test]
    async fn an_opening_is_booked_in_either_form_and_said_once() {
        for opening in [ToReceiver::Open(open(1000)), ToReceiver::OpenWith(open(1000), Extensions::default())]
        {
            let account = Account::default();
            let read = read(&[opening.clone(), opening], &account).await;
            let [Ok(_), Err(error)] = &read[..] else { panic!("{read:?}") };
            assert!(error.ends_with("a second opening is out of order"), "{error}");
            let held = account.memory_held();
            assert!((1000 * ELEMENT_BYTES..1100 * ELEMENT_BYTES).contains(&held), "{held}");
            drop(read);
            assert_eq!(account.memory_held(), 0);
        }
    }
}
