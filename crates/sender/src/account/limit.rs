//! The possible limits of a push.

use std::fmt;

/// A possible limit of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// Nothing in particular: dialling, and waiting for replies.
    #[default]
    StartUp,
    /// Walking the source.
    Scan,
    /// Reading and hashing the source.
    SourceReads,
    /// Encrypting on the sender or sharing its cores.
    SenderCpu,
    /// The path, or the kernel's window on it.
    Path,
    /// The rate that the sender's user has set.
    OwnRate,
    /// The rate that the receiver allows the sender's key.
    AllowedRate,
    /// Decrypting and checking on the receiver.
    ReceiverCpu,
    /// Creating, writing and flushing at the target.
    TargetWrites,
}

impl Limit {
    /// All limits, in the order of the pipeline.
    pub const ALL: [Self; 9] = [
        Self::StartUp,
        Self::Scan,
        Self::SourceReads,
        Self::SenderCpu,
        Self::Path,
        Self::OwnRate,
        Self::AllowedRate,
        Self::ReceiverCpu,
        Self::TargetWrites,
    ];
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartUp => "start-up and waiting for replies",
            Self::Scan => "walking the source",
            Self::SourceReads => "source reads",
            Self::SenderCpu => "the sender's CPU",
            Self::Path => "the network path",
            Self::OwnRate => "the rate set by --limit",
            Self::AllowedRate => "the rate that the receiver allows this key",
            Self::ReceiverCpu => "the receiver's CPU",
            Self::TargetWrites => "target writes",
        })
    }
}

/// A share between 0 and 1 in percent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 100"
)]
pub(crate) fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}
