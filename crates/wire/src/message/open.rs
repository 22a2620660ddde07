//! The opening of a transfer: the target and how it is written, and the receiver's answer.

use serde::{Deserialize, Serialize};
use zmove_types::{Kinds, Name};

use super::{
    Extraneous, GrantToken, Keeping, Proof, SharedJobOpening, ToReceiver, ToSender, bytes, copy,
    kept, list, shared_job, verify,
};
use crate::error::WireError;
use crate::extensions::{Extension, Extensions};
use crate::fields::Reader;
use crate::version::Version;

/// The order for a transfer: the target and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The target as the user wrote it: absolute, or relative to the identity's first root. At most 4096 bytes.
    #[serde(with = "bytes")]
    pub target: Vec<u8>,
    /// The shape that the target will have.
    pub shape: TargetShape,
    /// How existing files are compared.
    pub compare: Compare,
    /// When data must be on stable storage.
    pub durability: Durability,
    /// Whether large files that have changed are sent as the groups that differ from the old version
    /// ([`Verdict::Delta`](super::Verdict::Delta)).
    pub delta: bool,
    /// The run that the transfer belongs to: the id of the run's first transfer. An earlier transfer of the same run
    /// and key ends first.
    pub run: [u8; 16],
    /// Whether existing entries of the same name are replaced.
    pub overwrite: Overwrite,
    /// The purpose of the conversation: a push, a preview or a probe.
    pub purpose: Purpose,
    /// Whether entries that are only at the target may be removed.
    pub extraneous: Extraneous,
    /// Whether regular files that exist are changed in place instead of replaced.
    pub inplace: bool,
    /// What is kept of entries beside their contents. It travels among the extensions of the opening; where
    /// nothing is said only modes and times are kept.
    #[serde(skip)]
    pub keeping: Option<Keeping>,
    /// Whether a preview compares what the storages hold, and groups of large files by
    /// [`HashOrder`](super::HashOrder)s. It travels among the extensions of the opening.
    #[serde(skip)]
    pub verify: bool,
    /// What a file is proven by before it gets its name. It travels among the extensions of the opening.
    #[serde(skip)]
    pub proof: Proof,
    /// The grant by which the transfer is opened, where the right to do so is another's than the sender's. It travels
    /// among the extensions of the opening.
    #[serde(skip)]
    pub grant: Option<GrantToken>,
    /// The most entries that the receiver removes for the whole run, whatever its sender asks for; `None`: no limit. It
    /// travels among the extensions of the opening.
    #[serde(skip)]
    pub removals_max: Option<u64>,
    /// The state of the target, where the receiver, which orders this, knows that it is empty: files may be sent before
    /// it has answered to the opening. It travels among the extensions of an order alone.
    #[serde(skip)]
    pub known_state: Option<TargetState>,
    /// The part that the session has in a job of several receivers. It travels among the extensions of the opening.
    #[serde(skip)]
    pub shared_job: Option<Box<SharedJobOpening>>,
}

impl Open {
    /// The extension by which a sender says that it understands [`ToSender::RateMax`], in no bytes.
    pub const KEEPS_RATE: u16 = 2;
    /// The extensions of an opening that are known here.
    const EXTENSIONS: &'static [u16] = &[
        kept::KEPT,
        Self::KEEPS_RATE,
        verify::VERIFY,
        copy::GRANT,
        verify::MEDIA,
        REMOVALS,
        NOTHING_THERE,
        shared_job::SHARED_JOB,
    ];

    /// A push into a directory with no option set: files of another size or time are replaced, and nothing is flushed.
    #[must_use]
    pub const fn new(target: Vec<u8>, run: [u8; 16]) -> Self {
        Self {
            target,
            shape: TargetShape::Directory { tops: Vec::new() },
            compare: Compare::Quick,
            durability: Durability::None,
            delta: false,
            run,
            overwrite: Overwrite::Differing,
            purpose: Purpose::Move,
            extraneous: Extraneous::Stays,
            inplace: false,
            keeping: None,
            verify: false,
            proof: Proof::Wire,
            grant: None,
            removals_max: None,
            known_state: None,
            shared_job: None,
        }
    }

    /// The message for a receiver that speaks `version`.
    #[must_use]
    pub fn into_message(self, version: Version) -> ToReceiver {
        if version < Version::V4 {
            return ToReceiver::Open(self);
        }
        let keeping = self.keeping.map(Keeping::extension);
        let mut extensions = keeping
            .into_iter()
            .fold(Extensions::default(), Extensions::with);
        if self.purpose == Purpose::Move {
            let bytes = Box::default();
            extensions = extensions.with(Extension {
                number: Self::KEEPS_RATE,
                critical: false,
                bytes,
            });
        }
        if self.verify {
            extensions = extensions.with(verify::extension());
        }
        if let Some(token) = self.grant {
            extensions = extensions.with(copy::extension(token));
        }
        if let Some(proof) = self.proof.extension() {
            extensions = extensions.with(proof);
        }
        if let Some(entries) = self.removals_max {
            // A receiver that does not know it would remove whatever it is asked to.
            let bytes = entries.to_le_bytes().into();
            extensions = extensions.with(Extension {
                number: REMOVALS,
                critical: true,
                bytes,
            });
        }
        if let Some(job) = &self.shared_job {
            extensions = extensions.with(job.extension());
        }
        ToReceiver::OpenWith(self, extensions)
    }

    /// What an opening says with its extensions.
    ///
    /// # Errors
    /// [`WireError`] when one that is critical is not known, or one makes no sense.
    pub fn with(self, extensions: Extensions) -> Result<Self, WireError> {
        let extensions = extensions.only(Self::EXTENSIONS, "the opening")?;
        let verify = extensions.get(verify::VERIFY).is_some();
        let grant = copy::of_opening(&extensions)?;
        let proof = Proof::of_opening(&extensions);
        let entries = extensions
            .get(REMOVALS)
            .map(<[u8; 8]>::try_from)
            .transpose();
        let removals_max = entries
            .map_err(|_| WireError::Message)?
            .map(u64::from_le_bytes);
        let known_state = extensions.get(NOTHING_THERE).map(|_| TargetState::Empty);
        Ok(Self {
            keeping: Keeping::of_opening(&extensions)?,
            verify,
            proof,
            grant,
            removals_max,
            known_state,
            shared_job: SharedJobOpening::of_opening(&extensions)?.map(Box::new),
            ..self
        })
    }

    /// The extension by which a receiver that has dialled says that nothing is at its target.
    #[must_use]
    pub fn nothing_is_there() -> Extension {
        Extension {
            number: NOTHING_THERE,
            critical: false,
            bytes: Box::default(),
        }
    }
}

/// The number of the limit of removals among the extensions of an opening.
const REMOVALS: u16 = 6;
/// The number of what a receiver that has dialled knows of its target.
const NOTHING_THERE: u16 = 7;

/// The shape that the target will have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetShape {
    /// A directory that receives entries.
    Directory {
        /// The names at the directory's top that will be written, at most [`TOPS_MAX`](crate::limits::TOPS_MAX); an
        /// empty list stands for any name.
        #[serde(deserialize_with = "list::at_most::<{ crate::limits::TOPS_MAX }, _, _>")]
        tops: Vec<TopName>,
    },
    /// One entry: put into the target when that is a directory, else named as the target.
    Single {
        /// The entry's name at the source.
        #[serde(with = "bytes::name")]
        name: Name,
    },
}

/// A name at the top of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopName(#[serde(with = "bytes::name")] pub Name);

/// The way in which a file at the target is compared with its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// Compares size and modification time.
    #[default]
    Quick,
    /// Compares contents.
    Checksum,
}

/// The purpose of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// To move files.
    #[default]
    Move,
    /// To find out what a move would do; nothing at the target is changed.
    Preview,
    /// To measure the path, and perhaps the storage; nothing stays at the target. From
    /// [`Version::V2`](crate::Version) on.
    Probe,
}

/// Whether an existing entry of the same name is replaced where it differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overwrite {
    /// Every existing entry that differs is replaced.
    #[default]
    Differing,
    /// Files are replaced unless the existing file has the later modification time.
    Older,
    /// Nothing is replaced; only directories get mode and time.
    Nothing,
}

/// The promise that a zero exit code makes about the target's storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Nothing is flushed.
    None,
    /// Everything is flushed before the end.
    #[default]
    End,
    /// Each file is flushed before it gets its final name.
    File,
}

/// The receiver's findings at the target, and its limit for lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Whether the target holds anything.
    pub state: TargetState,
    /// The most lanes that the receiver will take.
    pub lanes_max: u16,
    /// The name that a single entry gets, where that is another than its own.
    pub single_name: Option<TopName>,
}

impl Opened {
    /// The message that carries this answer to an opening in which `keeping` was asked for, with what the receiver says
    /// of itself.
    #[must_use]
    pub fn into_message(self, keeping: Option<Keeping>, said: ReceiverSays) -> ToSender {
        match keeping {
            Some(_) => ToSender::OpenedWith(self, said.extensions()),
            None => ToSender::Opened(self),
        }
    }
}

/// What a receiver says of itself and of its target, among the extensions of [`Opened`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverSays {
    /// The kinds of metadata that it knows.
    pub kinds: Kinds,
    /// Whether it wants to be told what the sender finds, by [`ToReceiver::Found`].
    pub hears_found: bool,
    /// The bytes that its user may still store in the file system of the target.
    pub free_bytes: Option<u64>,
}

impl Default for ReceiverSays {
    /// What a receiver says that says nothing: it keeps what all keep.
    fn default() -> Self {
        Self {
            kinds: Kinds::ALWAYS,
            hears_found: false,
            free_bytes: None,
        }
    }
}

impl ReceiverSays {
    const HEARS_FOUND: u16 = 2;
    const FREE_BYTES: u16 = 3;

    fn extensions(self) -> Extensions {
        let said = |number, bytes| Extension {
            number,
            critical: false,
            bytes,
        };
        let hears = self
            .hears_found
            .then(|| said(Self::HEARS_FOUND, Box::default()));
        let free = self
            .free_bytes
            .map(|bytes| said(Self::FREE_BYTES, bytes.to_le_bytes().into()));
        hears
            .into_iter()
            .chain(free)
            .fold(Keeping::answer(self.kinds), Extensions::with)
    }

    /// What the extensions of an answer say.
    ///
    /// # Errors
    /// [`WireError`] when that makes no sense.
    pub fn of_answer(extensions: &Extensions) -> Result<Self, WireError> {
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            let free = reader.u64()?;
            reader.finish()?;
            Ok::<_, WireError>(free)
        };
        Ok(Self {
            kinds: Keeping::of_answer(extensions)?,
            hears_found: extensions.get(Self::HEARS_FOUND).is_some(),
            free_bytes: extensions.get(Self::FREE_BYTES).map(read).transpose()?,
        })
    }
}

/// How much the sender has found so far, and how much of it need not travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundSoFar {
    /// Regular files that the scan has found.
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// The bytes of those that need not travel: of files that are equal, of groups that are there, of holes.
    pub skipped_bytes: u64,
    /// Whether the scan has ended.
    pub all: bool,
}

/// Whether files have to be offered before they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// Nothing is there: every file is needed.
    Empty,
    /// Something is there: files must be offered first.
    Populated,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode_message, encode_message};

    #[test]
    fn an_opening_says_how_much_may_be_removed() {
        for removals_max in [None, Some(0), Some(u64::MAX)] {
            let open = Open {
                removals_max,
                ..Open::new(b"t".to_vec(), [3; 16])
            };
            let bytes = encode_message(&open.clone().into_message(Version::V4));
            let Ok(ToReceiver::OpenWith(plain, extensions)) = decode_message(&bytes[4..]) else {
                panic!("another message")
            };
            assert_eq!(plain.with(extensions), Ok(open));
        }
        let short = Extension {
            number: REMOVALS,
            critical: true,
            bytes: Box::new([1]),
        };
        let open = Open::new(b"t".to_vec(), [3; 16]);
        assert_eq!(
            open.with(Extensions::default().with(short)),
            Err(WireError::Message)
        );
    }

    #[test]
    fn what_a_receiver_says_of_itself_is_pinned() {
        let said = ReceiverSays {
            kinds: Kinds::ALL,
            hears_found: true,
            free_bytes: Some(258),
        };
        let extensions = said.extensions();
        assert_eq!(
            (extensions.get(2), extensions.get(3)),
            (Some(&[][..]), Some(&[2, 1, 0, 0, 0, 0, 0, 0][..]))
        );
        assert_eq!(ReceiverSays::of_answer(&extensions), Ok(said));
        // A receiver of an older release says what it keeps, or nothing.
        let older = ReceiverSays {
            kinds: Kinds::ALL,
            ..ReceiverSays::default()
        };
        assert_eq!(
            ReceiverSays::of_answer(&Keeping::answer(Kinds::ALL)),
            Ok(older)
        );
        assert_eq!(
            ReceiverSays::of_answer(&Extensions::default()),
            Ok(ReceiverSays::default())
        );
        let short = Extension {
            number: 3,
            critical: false,
            bytes: [1].into(),
        };
        assert!(ReceiverSays::of_answer(&extensions.with(short)).is_err());
    }
}
