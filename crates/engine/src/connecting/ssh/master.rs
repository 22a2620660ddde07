//! Connections through the login of ssh.
//!
//! The ssh process that starts the receiver is also a *master* (ssh_config(5), `ControlMaster`): it takes orders on a
//! Unix socket. One order makes it listen on a second Unix socket, whose connections it forwards to the receiver's port
//! on the far host. Each is a channel of its own, so each has ssh's window for itself. If the user's ssh shares a login,
//! that login is the master.
//!
//! **Invariant:** both sockets are in a directory of this process that only the user can open. It is removed as soon as
//! the connections can be made, so a process that is killed leaves at most an empty directory, if that happens during
//! the login. Our master ends with its session, which ends with this process. In a login of the user, a killed process
//! leaves a listener that nobody can reach, until that login ends.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;
use zmove_transport::{ForwardedPort, TransportChoice};
use zmove_types::printable;

use super::config::SshConfig;
use crate::connecting::settings::{ConnectionMethod, DialSettings, SshSettings};
use crate::error::SshError;

/// The ssh process through which connections can be forwarded.
#[derive(Debug)]
pub(crate) struct SshMaster {
    program: String,
    /// The socket for orders.
    control: PathBuf,
    owner: MasterOwner,
    directory: TempDir,
}

/// The owner of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MasterOwner {
    /// This process starts it for one session.
    Session {
        /// Whether the user's options already make each login a master. A second such option would make ssh ask for a
        /// confirmation of each order.
        is_master: bool,
    },
    /// The user shares it between all uses of ssh.
    User,
}

/// A forwarding by a master of the user. It is canceled when this is dropped.
#[derive(Debug)]
pub(crate) struct SharedForwarding {
    /// The order to cancel, until it is given.
    cancel: Option<std::process::Command>,
}

impl SshMaster {
    /// Prepares a master for the settings, or returns `None` if data cannot or must not go through ssh.
    pub(super) fn prepare(settings: &DialSettings, config: &SshConfig) -> Option<Self> {
        let ssh = &settings.ssh;
        // A wrapper may pass on the question for the configuration, but not the options of a master.
        let is_possible = match ssh.method {
            ConnectionMethod::Direct => false,
            ConnectionMethod::Auto => Path::new(&ssh.program).ends_with("ssh"),
            ConnectionMethod::Ssh => true,
        };
        let is_excluded = !is_possible
            || settings.reach.transport == TransportChoice::Quic
            || config.host_name().is_none()
            || !has_only_options(&ssh.arguments);
        if is_excluded {
            return None;
        }
        let directory = socket_directory(ssh).ok()?;
        let (control, owner) = match config.shared_control() {
            Some(path) => (path.into(), MasterOwner::User),
            None => {
                let is_master = config.is_master();
                let control = directory.path().join(CONTROL);
                (control, MasterOwner::Session { is_master })
            }
        };
        Some(Self {
            program: ssh.program.clone(),
            control,
            owner,
            directory,
        })
    }

    /// Returns the options that must come before those of the user, because ssh uses the first value of each option.
    pub(super) fn first_options(&self) -> &'static [&'static str] {
        match self.owner {
            MasterOwner::Session { is_master: false } => {
                &["-oControlPersist=no", "-oControlMaster=yes"]
            }
            MasterOwner::Session { is_master: true } => &["-oControlPersist=no"],
            MasterOwner::User => &[],
        }
    }

    /// Returns the option that must come after those of the user, because ssh uses its last value.
    pub(super) fn last_options(&self) -> Vec<String> {
        match self.owner {
            MasterOwner::Session { .. } => vec![format!("-S{}", self.control.display())],
            MasterOwner::User => Vec::new(),
        }
    }

    /// Makes the master forward connections to `port` on the loopback interface of its host. The forwarding of a master
    /// of the user ends when the second value is dropped.
    ///
    /// # Errors
    /// ssh does not take the order.
    pub(crate) async fn forward(
        self,
        port: u16,
    ) -> Result<(ForwardedPort, Option<SharedForwarding>), SshError> {
        let socket = self.directory.path().join(FORWARDED);
        let forwarding = format!("{}:127.0.0.1:{port}", socket.display());
        // Made first, so that it also cancels an order that is given up.
        let shared = (self.owner == MasterOwner::User).then(|| SharedForwarding {
            cancel: Some(self.order("cancel", &forwarding)),
        });
        let order = Command::from(self.order("forward", &forwarding))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output();
        let refused = |said: String| SshError::Forward { said };
        let ordered = match timeout(ORDER_TIMEOUT, order).await {
            Ok(ordered) => ordered.map_err(|error| refused(error.to_string()))?,
            Err(_late) => return Err(refused("no answer".into())),
        };
        if !ordered.status.success() {
            let said = String::from_utf8_lossy(&ordered.stderr);
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            return Err(refused(printable(last.unwrap_or_default().trim())));
        }
        let opened = ForwardedPort::open(&socket, port);
        // The master works without the files. If one stays, the system removes it.
        let _best_effort = self.directory.close();
        Ok((opened.map_err(|error| refused(error.to_string()))?, shared))
    }

    /// Returns a command that gives the master an order about a forwarding. The user's configuration is not read,
    /// because its forwardings would be ordered as well.
    fn order(&self, order: &str, forwarding: &str) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command.args(["-F", "none", "-S"]).arg(&self.control);
        command.args(["-O", order, "-L", forwarding, "zmove"]);
        command.stdin(Stdio::null());
        command
    }
}

impl SharedForwarding {
    /// Cancels the forwarding, and waits until the master has taken the order.
    pub(super) async fn end(mut self) {
        if let Some(cancel) = self.cancel.take() {
            let cancelled = Command::from(cancel)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            let _best_effort = timeout(ORDER_TIMEOUT, cancelled).await;
        }
    }
}

impl Drop for SharedForwarding {
    fn drop(&mut self) {
        // Without this, the master keeps listening on a socket that nobody can reach any more.
        if let Some(mut cancel) = self.cancel.take() {
            let spawned = cancel.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            if let Ok(mut child) = spawned {
                let _best_effort = std::thread::Builder::new().spawn(move || child.wait());
            }
        }
    }
}

/// Creates a directory for sockets that only the user can open.
fn socket_directory(settings: &SshSettings) -> io::Result<TempDir> {
    let create = |parent: &Path| {
        tempfile::Builder::new()
            .prefix("zmove-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)
    };
    let chosen = settings
        .socket_directory
        .as_deref()
        .filter(|path| is_suitable(path));
    match chosen.map(create) {
        Some(Ok(directory)) => Ok(directory),
        Some(Err(_)) | None => create(Path::new("/tmp")),
    }
}

/// Returns whether ssh can listen on a socket in a directory of this directory. The address of a socket is short, and
/// ssh expands some characters.
fn is_suitable(directory: &Path) -> bool {
    let text = directory.as_os_str();
    let is_literal = |&byte: &u8| !matches!(byte, b'%' | b'$' | b':' | b' ');
    directory.is_absolute()
        && text.len() <= DIRECTORY_BYTES_MAX
        && text.as_encoded_bytes().iter().all(is_literal)
}

/// Returns whether ssh's arguments are options only. Another word is a program that ssh's command starts: a second ssh
/// at a gateway, or ssh below a wrapper. Its sockets may be on another host or belong to another user.
fn has_only_options(arguments: &[String]) -> bool {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return false;
        };
        let with_value = letters.find(|letter: char| WITH_VALUE.contains(letter));
        // The value is the rest of the word, or the next word.
        if with_value.is_some_and(|at| at + 1 == letters.len()) {
            words.next();
        }
    }
    true
}

/// The options of ssh(1) that have a value.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOoPpQRSWw";
/// The name of the socket for orders.
const CONTROL: &str = "control";
/// The name of the socket whose connections are forwarded.
const FORWARDED: &str = "forwarded";
/// Maximum length of the directory's parent, so that the addresses fit into 108 bytes. ssh first appends a random name
/// of 17 bytes to them.
const DIRECTORY_BYTES_MAX: usize = 60;
/// Time limit for the master to take an order. It does not wait for the far host.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_program_in_the_command_is_recognized() {
        let is_plain = |command: &str| {
            let words: Vec<_> = command.split(' ').skip(1).map(str::to_owned).collect();
            has_only_options(&words)
        };
        for command in [
            "ssh",
            "ssh -i KEY -J GATE",
            "ssh -oPort=22 -4Cp 2222 -vvF none",
            "ssh -JGATE -l alice",
        ] {
            assert!(is_plain(command), "{command}");
        }
        for command in [
            "ssh gate ssh",
            "sudo -u alice ssh",
            "sshpass -p secret ssh",
            "ssh -4 gate ssh",
            "env ssh -4",
        ] {
            assert!(!is_plain(command), "{command}");
        }
    }

    #[test]
    fn sockets_are_in_a_directory_that_only_the_user_can_open() {
        let parent = tempfile::tempdir().unwrap();
        let settings = SshSettings {
            socket_directory: Some(parent.path().into()),
            ..SshSettings::default()
        };
        let directory = socket_directory(&settings).unwrap();
        assert!(directory.path().starts_with(parent.path()));
        let mode = std::fs::metadata(directory.path()).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        for unsuitable in [
            "relative",
            "/with space",
            "/%d",
            &format!("/{}", "x".repeat(80)),
        ] {
            assert!(!is_suitable(Path::new(unsuitable)), "{unsuitable}");
        }
    }
}
