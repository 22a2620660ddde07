//! Connections through the login of ssh.
//!
//! The ssh process that starts the receiver is also a *master* (ssh_config(5), `ControlMaster`): it takes requests on a
//! Unix socket. Each connection is a request ([`ForwardedPort`]), and a channel of its own, so each has ssh's window
//! for itself. If the user's ssh shares its logins, the user's master takes the requests, and ssh gets no option from
//! us that changes the login.
//!
//! **Invariant:** nothing exists before the login. Our master's socket is removed as soon as it is open, and our master
//! ends with its session, which ends with this process. If this process is killed in between, ssh removes the socket
//! when it ends.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use tokio::time::timeout;
use zmove_transport::{ForwardedPort, TransportChoice};
use zmove_types::printable;

use super::config::SshConfig;
use crate::connecting::settings::{ConnectionMethod, DialSettings, SshSettings};
use crate::error::SshError;
use crate::random::random;

/// The ssh process through which connections are made.
#[derive(Debug)]
pub(crate) struct SshMaster {
    /// The socket for requests.
    control: PathBuf,
    owner: MasterOwner,
    /// The command that the user has chosen to run zmove on the host.
    remote_zmove: Option<String>,
}

/// The owner of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MasterOwner {
    /// This process starts it for one session.
    Session,
    /// The user shares it between uses of ssh. ssh starts it if it does not exist.
    User,
}

impl SshMaster {
    /// Prepares a master for the settings, or returns `None` if data cannot or must not go through ssh.
    pub(super) fn prepare(settings: &DialSettings, config: &SshConfig) -> Option<Self> {
        let ssh = &settings.ssh;
        let is_excluded = ssh.method == ConnectionMethod::Direct
            || settings.reach.transport == TransportChoice::Quic
            || config.host_name().is_none()
            || !has_only_options(&ssh.arguments);
        if is_excluded {
            return None;
        }
        let (control, owner) = match config.shared_control() {
            Some(path) => (path.into(), MasterOwner::User),
            None => (own_control(ssh)?, MasterOwner::Session),
        };
        Some(Self {
            control,
            owner,
            remote_zmove: ssh.remote_zmove.clone(),
        })
    }

    /// Returns the options that must come before those of the user, because ssh uses the first value of each option.
    pub(super) fn first_options(&self, config: &SshConfig) -> &'static [&'static str] {
        match self.owner {
            // A second request to be a master, after a `-M` of the user, would mean to ask before each connection.
            MasterOwner::Session if config.is_master() => &["-oControlPersist=no"],
            MasterOwner::Session => &["-oControlPersist=no", "-oControlMaster=yes"],
            MasterOwner::User => &[],
        }
    }

    /// Returns the options that come after those of the user. ssh uses the last value of `-S`. The other options are
    /// used unless the user has set them. They must be chosen before it is known whether data goes through ssh. If it
    /// does not, they change nothing but the order of ciphers and the time after which a lost path is noticed.
    pub(super) fn last_options(&self, config: &SshConfig) -> Vec<String> {
        match self.owner {
            MasterOwner::Session => {
                let mut options = vec![format!("-S{}", self.control.display())];
                options.extend(config.alive_options().iter().map(ToString::to_string));
                options.extend(config.cipher_option());
                options
            }
            MasterOwner::User => Vec::new(),
        }
    }

    /// Returns whether ssh may have failed because of the options of a master. A script that calls ssh can pass them to
    /// another host or user, or refuse them. Plain ssh cannot, so a failed login is not repeated.
    pub(super) fn may_have_failed(&self, program: &str) -> bool {
        self.owner == MasterOwner::Session && !self.control.exists() && is_script(program)
    }

    /// Connects to `port` on the loopback interface of the master's host. If the server forwards nothing, `program`
    /// connects, the path of the receiver's program.
    ///
    /// # Errors
    /// The master or the server refuses.
    pub(crate) async fn open(
        self,
        port: u16,
        program: Option<&str>,
    ) -> Result<ForwardedPort, SshError> {
        let refused = |said: String| SshError::Forward {
            said: printable(&said),
        };
        let chosen = self.remote_zmove.clone();
        let program = chosen.or_else(|| quoted(program?));
        let program = program.as_deref().unwrap_or("zmove");
        let opening = ForwardedPort::open(&self.control, port, format!("{program} lane {port}"));
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(opened) => opened.map_err(|error| refused(error.to_string())),
            Err(_late) => Err(refused("no answer".into())),
        }
    }
}

impl Drop for SshMaster {
    fn drop(&mut self) {
        if self.owner == MasterOwner::Session {
            // The master works without the file. If the file stays, ssh removes it.
            let _best_effort = std::fs::remove_file(&self.control);
        }
    }
}

/// Quotes a path for any login shell. Returns `None` if not all shells would understand it in the same way.
fn quoted(path: &str) -> Option<String> {
    let is_plain = !path.contains(['\'', '!', '\\', '\n']);
    (is_plain && path.starts_with('/')).then(|| format!("'{path}'"))
}

/// Returns a path for the socket of a master, in a directory to which only the user can write.
fn own_control(settings: &SshSettings) -> Option<PathBuf> {
    let name = format!("zmove-{:016x}", u64::from_le_bytes(random().ok()?));
    let chosen = settings.socket_directory.as_deref();
    if let Some(directory) = chosen.filter(|path| is_suitable(path) && is_private(path)) {
        return Some(directory.join(name));
    }
    // Like other programs' directories of sockets in /tmp, it stays.
    let directory = PathBuf::from(format!("/tmp/zmove-{}", geteuid().as_raw()));
    let _may_exist = DirBuilder::new().mode(0o700).create(&directory);
    is_private(&directory).then(|| directory.join(name))
}

/// Returns whether only the user can write to the directory.
fn is_private(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory).is_ok_and(|found| {
        let is_own = found.uid() == geteuid().as_raw();
        found.is_dir() && is_own && found.mode() & 0o022 == 0
    })
}

/// Returns whether a program is a script, found as the system finds it.
fn is_script(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if program.contains('/') {
        Some(program.into())
    } else {
        let mut files = std::env::split_paths(&path).map(|directory| directory.join(program));
        files.find(|file| file.is_file())
    };
    let mut start = [0; 2];
    found
        .and_then(|file| File::open(file).ok())
        .is_some_and(|mut file| file.read_exact(&mut start).is_ok() && start == *b"#!")
}

/// Returns whether ssh can listen on a socket in a directory. The address of a socket is short, and
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
/// Maximum length of the directory's path, so that the address fits into 108 bytes. ssh first appends a random name of
/// 17 bytes to it.
const DIRECTORY_BYTES_MAX: usize = 60;
/// Time limit for the first connection. The far host may have to start a program for it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

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
    fn only_paths_that_all_shells_quote_alike_are_used() {
        assert_eq!(quoted("/a b/$c").as_deref(), Some("'/a b/$c'"));
        for path in ["zmove", "-x", "/it's", "/a!b", "/a\\b", "/a\nb"] {
            assert_eq!(quoted(path), None, "{path}");
        }
    }

    #[test]
    fn sockets_are_in_a_directory_to_which_only_the_user_can_write() {
        let parent = tempfile::tempdir().unwrap();
        let settings = SshSettings {
            socket_directory: Some(parent.path().into()),
            ..SshSettings::default()
        };
        let control = || own_control(&settings).unwrap();
        assert!(control().starts_with(parent.path()));
        assert!(!control().exists(), "nothing exists before the login");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(parent.path(), open).unwrap();
        assert!(!control().starts_with(parent.path()));
        for unsuitable in [
            "relative",
            "/with space",
            "/%d",
            &format!("/{}", "x".repeat(80)),
        ] {
            assert!(!is_suitable(Path::new(unsuitable)), "{unsuitable}");
        }
    }

    #[test]
    fn a_login_of_the_user_gets_no_options_and_a_request_to_be_a_master_is_made_once() {
        let lines = |more: &str| {
            let ciphers = super::super::config::USUAL_CIPHERS;
            SshConfig::of(&format!("hostname dtn\nciphers {ciphers}\n{more}"))
        };
        let settings = DialSettings::default();
        let options = |config: &SshConfig| {
            let master = SshMaster::prepare(&settings, config).unwrap();
            (master.first_options(config), master.last_options(config))
        };
        let users = lines("controlmaster auto\ncontrolpath /run/x\ncontrolpersist yes\n");
        assert_eq!(options(&users), (&[][..], Vec::new()));
        let by_option = options(&lines("controlmaster true\n"));
        assert_eq!(by_option.0, ["-oControlPersist=no"]);
        let usual = options(&lines("controlmaster false\ncontrolpath /run/x\n"));
        assert_eq!(usual.0, ["-oControlPersist=no", "-oControlMaster=yes"]);
        assert_eq!(usual.1.len(), 4, "{:?}", usual.1);
    }
}
