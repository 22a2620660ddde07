//! The helper program on a host without zmove: sends it through the pipes of the login that is to start a receiver.
//!
//! The first command on the host is a shell script ([`script`]). It runs `zmove` if that speaks this version of the
//! protocol, or else the helper of an earlier run. If there is neither, it says so and then runs the scripts that this
//! side sends over its standard input. So a host that has either costs no round trip, and no host asks for a second
//! password.
//!
//! **Invariant:** the host runs only a file with the digest of this side's helper, below directories that only its user
//! can change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use zmove_types::{Hex, printable};

use super::SshPipes;
use crate::connecting::location::Remote;
use crate::connecting::settings::{ConfirmHelper, HelperOffer, SshSettings};
use crate::error::{BootstrapError, SshError};
use crate::random::random;

mod script;

use script::{Place, Scripts};

/// The helper program of this installation.
pub(super) struct Helper {
    bytes: Vec<u8>,
    digest: String,
    consent: Arc<dyn ConfirmHelper>,
    scripts: Scripts,
}

/// The first relevant line of a host that has not started a receiver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundHelper {
    state: HelperState,
    /// Operating system and processor of the host.
    machine: String,
    /// Path of the helper on the host.
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelperState {
    Missing,
    /// A helper exists, but the host has no program to compute its digest.
    Unchecked,
}

/// A line of the scripts.
#[derive(Debug, PartialEq, Eq)]
enum FarLine {
    /// The host waits for the bytes of the helper.
    Send,
    /// The bytes of the helper follow.
    ReadBack,
    /// The helper is ready.
    Stored,
    Refused(String),
}

/// Whether the host has started the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bootstrapped {
    Started,
    /// The host's output has ended.
    Ended,
}

impl Helper {
    /// Reads the helper program. Returns `None` if it must not be used or cannot be read.
    pub(super) async fn load(settings: &SshSettings) -> Option<Self> {
        if settings.remote_zmove.is_some() {
            return None;
        }
        let helper = settings.helper.clone()?;
        let read = move || std::fs::read(helper.path).ok();
        let bytes = tokio::task::spawn_blocking(read).await.ok()??;
        let digest = Hex(digest(&SHA256, &bytes).as_ref()).to_string();
        let token: [u8; 8] = random().ok()?;
        let token = Hex(&token).to_string();
        Some(Self {
            scripts: Scripts::new(&digest, bytes.len(), &token),
            consent: helper.consent,
            bytes,
            digest,
        })
    }

    /// Returns the command that starts zmove or the helper, for any login shell.
    pub(super) fn start_command(&self) -> String {
        self.scripts.start()
    }
}

impl FoundHelper {
    /// Parses a line of the host. Returns `None` for other output.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let mut words = content(line)?.splitn(4, ' ');
        let state = match words.next()? {
            "missing" => HelperState::Missing,
            "unchecked" => HelperState::Unchecked,
            _ => return None,
        };
        let machine = printable(&format!("{} {}", words.next()?, words.next()?));
        let path = printable(words.next()?);
        Some(Self {
            state,
            machine,
            path,
        })
    }
}

impl FarLine {
    fn parse(line: &[u8]) -> Option<Self> {
        let text = content(line)?;
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        Some(match word {
            "send" => Self::Send,
            "readback" => Self::ReadBack,
            "stored" => Self::Stored,
            "refused" => {
                let reason: String = rest.chars().take(REASON_CHARS_MAX).collect();
                Self::Refused(printable(reason.trim()))
            }
            _ => return None,
        })
    }
}

/// Returns the rest of a line that the scripts have marked.
fn content(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix(script::MARK)
}

/// A host that waits for scripts.
pub(super) struct Bootstrap<'a> {
    pub(super) remote: &'a Remote,
    pub(super) helper: &'a Helper,
    pub(super) pipes: &'a mut SshPipes,
}

impl Bootstrap<'_> {
    /// Makes the host start the helper. Sends it first, unless the host has it already.
    ///
    /// # Errors
    /// The user does not agree, or the host cannot store or run the helper.
    pub(super) async fn run(mut self, found: &FoundHelper) -> Result<Bootstrapped, SshError> {
        self.send(&self.helper.scripts.functions()).await;
        if found.state == HelperState::Unchecked {
            self.send(&self.helper.scripts.check()).await;
            match self.next().await? {
                Some(FarLine::ReadBack) if self.reads_back().await? => return self.start().await,
                Some(_) => {}
                None => return Ok(Bootstrapped::Ended),
            }
        }
        self.confirm(found).await?;
        let mut refusals = Vec::new();
        for place in [Place::Cache, Place::Runtime] {
            match self.store(place).await? {
                Some(FarLine::Stored) => return self.start().await,
                Some(FarLine::Refused(reason)) => refusals.push(reason),
                Some(FarLine::Send | FarLine::ReadBack) | None => return Ok(Bootstrapped::Ended),
            }
        }
        Err(BootstrapError::Refused {
            remote: self.remote.to_string(),
            reasons: refusals.join("; "),
        }
        .into())
    }

    /// Returns once the user has agreed to send the helper.
    async fn confirm(&self, found: &FoundHelper) -> Result<(), BootstrapError> {
        let remote = self.remote.to_string();
        if found.machine != MACHINE {
            let machine = found.machine.clone();
            return Err(BootstrapError::Machine { remote, machine });
        }
        let offer = HelperOffer {
            remote,
            path: PathBuf::from(&found.path),
            bytes: self.helper.bytes.len() as u64,
            digest: self.helper.digest.clone(),
        };
        let consent = Arc::clone(&self.helper.consent);
        let asked = tokio::task::spawn_blocking(move || consent.confirm(&offer)).await;
        asked
            .unwrap_or_else(|panicked| Err(panicked.into()))
            .map_err(BootstrapError::Unconfirmed)
    }

    /// Stores the helper on the host. Returns [`FarLine::Stored`], [`FarLine::Refused`], or `None` at the end of the
    /// output.
    async fn store(&mut self, place: Place) -> Result<Option<FarLine>, SshError> {
        self.send(&self.helper.scripts.store(place)).await;
        let ready = self.next().await?;
        if ready != Some(FarLine::Send) {
            return Ok(ready);
        }
        self.upload().await?;
        let stored = self.next().await?;
        if stored != Some(FarLine::ReadBack) {
            return Ok(stored);
        }
        let is_same = self.reads_back().await?;
        self.send(&self.helper.scripts.settle(is_same)).await;
        self.next().await
    }

    async fn upload(&mut self) -> Result<(), BootstrapError> {
        for part in self.helper.bytes.chunks(PART_BYTES) {
            match timeout(STALL_MAX, self.pipes.input.write_all(part)).await {
                Ok(Ok(())) => {}
                // The output of the host shows the reason.
                Ok(Err(_closed)) => break,
                Err(_late) => return Err(self.stalled()),
            }
        }
        Ok(())
    }

    /// Reads the host's copy of the helper, and returns whether it is the same.
    async fn reads_back(&mut self) -> Result<bool, SshError> {
        let mut copy = vec![0; self.helper.bytes.len()];
        for part in copy.chunks_mut(PART_BYTES) {
            self.pipes.output.set_limit(PART_BYTES as u64);
            match timeout(STALL_MAX, self.pipes.output.read_exact(part)).await {
                Ok(read) => read.map_err(SshError::Read)?,
                Err(_late) => return Err(self.stalled().into()),
            };
        }
        Ok(copy == self.helper.bytes)
    }

    async fn start(mut self) -> Result<Bootstrapped, SshError> {
        self.send(&self.helper.scripts.start_helper()).await;
        self.pipes.output.set_limit(super::SHELL_BYTES_MAX);
        Ok(Bootstrapped::Started)
    }

    /// Sends a script. If the host has closed its input, its output shows the reason.
    async fn send(&mut self, script: &str) {
        let _closed = self.pipes.input.write_all(script.as_bytes()).await;
    }

    /// Returns the next line of the scripts, or `None` at the end of the output. Other lines are added to `printed`.
    async fn next(&mut self) -> Result<Option<FarLine>, SshError> {
        self.pipes.output.set_limit(super::SHELL_BYTES_MAX);
        let next = async {
            while let Some(line) = self.pipes.next_line().await? {
                match FarLine::parse(&line) {
                    Some(line) => return Ok(Some(line)),
                    None => self.pipes.printed.add(&line),
                }
            }
            Ok(None)
        };
        match timeout(STALL_MAX, next).await {
            Ok(line) => line,
            Err(_late) => Err(self.stalled().into()),
        }
    }

    fn stalled(&self) -> BootstrapError {
        let remote = self.remote.to_string();
        BootstrapError::Stalled { remote }
    }
}

/// The machine for which the helper is built, as `uname -sm` prints it.
const MACHINE: &str = if cfg!(target_arch = "aarch64") {
    "Linux aarch64"
} else {
    "Linux x86_64"
};
/// Bytes that are sent or read back at once.
const PART_BYTES: usize = 64 << 10;
/// Time limit for each part and each answer. ssh and the kernel buffer some megabytes, which a slow path carries in
/// this time.
const STALL_MAX: Duration = Duration::from_secs(120);
/// Maximum length of a reason, in characters.
const REASON_CHARS_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_host_are_parsed_and_made_printable() {
        let line = b"zmove-far unchecked Linux x86_64 /home/a b/\x1b[1m/zmove-far";
        let found = FoundHelper::parse(line).unwrap();
        assert_eq!(found.state, HelperState::Unchecked);
        assert_eq!(found.machine, "Linux x86_64");
        assert!(found.path.starts_with("/home/a b/") && !found.path.contains('\x1b'));
        assert_eq!(FoundHelper::parse(b"zmove-far missing Linux"), None);
        assert_eq!(FoundHelper::parse(b"Welcome"), None);
        assert_eq!(FarLine::parse(b"zmove-far send"), Some(FarLine::Send));
        assert_eq!(
            FarLine::parse(b"zmove-far refused  no space "),
            Some(FarLine::Refused("no space".into()))
        );
        assert_eq!(FarLine::parse(b"zmove-far other"), None);
    }
}
