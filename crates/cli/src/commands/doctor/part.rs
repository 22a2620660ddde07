//! The part that a host has in a transfer.

/// Which part this host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It may send and receive.
    Either,
    /// It sends to the receiver that was named.
    Sender,
}
