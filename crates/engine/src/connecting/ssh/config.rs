//! Reads ssh's configuration for a host and chooses the options that limit the time of each step.
//!
//! ssh does not report when a login is complete. It then runs a `LocalCommand`, whose output is mixed with its own
//! output. **Invariant:** a step in which ssh may ask the user has no time limit, and no setting of the user is
//! overridden.

use std::process::Stdio;
use std::time::Duration;

use tokio::time::timeout;

use super::{remote_name, ssh};
use crate::connecting::location::{Login, Remote};
use crate::connecting::settings::SshSettings;

/// How the end of a login can be detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginDetection {
    /// ssh shares a connection that is already logged in.
    AlreadyDone,
    /// ssh writes [`LOGGED_IN`].
    Reported,
    /// The end of the login cannot be detected.
    Unknown,
}

/// The configuration that `ssh -G` prints.
#[derive(Debug, Default)]
pub(super) struct SshConfig {
    /// One name and value per line. Empty if the program is not OpenSSH.
    lines: String,
    /// Whether ssh shares an existing connection that is logged in.
    is_shared: bool,
}

impl SshConfig {
    pub(super) async fn ask(settings: &SshSettings, remote: &Remote, login: &Login) -> Self {
        let ask = async |question: &[&str]| {
            let mut asked = ssh(settings, remote, login, &[]);
            asked
                .args(question)
                .arg(remote_name(remote, login))
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            let answered = timeout(ASK_TIMEOUT, asked.output()).await.ok()?.ok()?;
            let is_yes = answered.status.success();
            is_yes.then(|| String::from_utf8_lossy(&answered.stdout).into_owned())
        };
        let mut config = Self {
            lines: ask(&["-G"]).await.unwrap_or_default(),
            is_shared: false,
        };
        // Such an ssh uses no existing login. It would log in instead of checking.
        let always_logs_in = matches!(config.value("controlmaster"), Some("true" | "ask"));
        if config.value("controlpath").is_some() && !always_logs_in {
            config.is_shared = ask(&["-O", "check"]).await.is_some();
        }
        config
    }

    /// Returns the host name that ssh connects to. The configuration may replace the given name.
    pub(super) fn host_name(&self) -> Option<&str> {
        self.value("hostname")
    }

    /// Returns whether ssh reaches the host through another host or program.
    pub(super) fn has_proxy(&self) -> bool {
        let is_set = |name| self.value(name).is_some_and(|value| value != "none");
        is_set("proxyjump") || is_set("proxycommand")
    }

    pub(super) fn login_sign(&self) -> LoginDetection {
        let has_own_command =
            self.value("permitlocalcommand") == Some("yes") && self.value("localcommand").is_some();
        if self.is_shared {
            LoginDetection::AlreadyDone
        } else if self.host_name().is_none() || has_own_command {
            LoginDetection::Unknown
        } else {
            LoginDetection::Reported
        }
    }

    /// Returns the socket of a login that the user shares, if any. ssh may create it.
    pub(super) fn shared_control(&self) -> Option<&str> {
        let creates = self
            .value("controlmaster")
            .is_some_and(|value| value != "false");
        self.value("controlpath")
            .filter(|_| self.is_shared || creates)
    }

    /// Returns whether ssh becomes a master without a further option.
    pub(super) fn is_master(&self) -> bool {
        matches!(self.value("controlmaster"), Some("true" | "auto"))
    }

    /// Returns the time limit for the connection, and for the time from the login to the receiver's answer.
    pub(super) fn wait_max(&self) -> Duration {
        self.connect_timeout().unwrap_or(WAIT_MAX)
    }

    /// Returns the options with which ssh limits the time to connect and reports the end of the login.
    pub(super) fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.host_name().is_some() && self.connect_timeout().is_none() {
            options.push(format!("-oConnectTimeout={}", WAIT_MAX.as_secs()));
        }
        if self.login_sign() == LoginDetection::Reported {
            options.push("-oPermitLocalCommand=yes".into());
            options.push(format!("-oLocalCommand=echo {LOGGED_IN}"));
        }
        options
    }

    /// Returns the options with which ssh ends if its connection is lost, unless the user has set them. The connections
    /// through ssh then end as well.
    pub(super) fn alive_options(&self) -> &'static [&'static str] {
        match self.value("serveraliveinterval") {
            None | Some("0") => &["-oServerAliveInterval=15", "-oServerAliveCountMax=4"],
            Some(_) => &[],
        }
    }

    /// Returns the option that selects a fast cipher, unless the user or the system has chosen ciphers. OpenSSH prefers
    /// a cipher that needs half as much again.
    pub(super) fn cipher_option(&self) -> Option<String> {
        let usual = self.value("ciphers").filter(|all| *all == USUAL_CIPHERS)?;
        let rest = usual.replace(&format!(",{FAST_CIPHER}"), "");
        Some(format!("-oCiphers={FAST_CIPHER},{rest}"))
    }

    #[cfg(test)]
    pub(super) fn of(lines: &str) -> Self {
        Self {
            lines: lines.into(),
            is_shared: false,
        }
    }

    fn connect_timeout(&self) -> Option<Duration> {
        let seconds = self.value("connecttimeout")?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut fields = self.lines.lines().filter_map(|line| line.split_once(' '));
        fields.find_map(|(found, value)| (found == name).then_some(value))
    }
}

/// The cipher with the least CPU time on hosts whose processors have instructions for AES.
const FAST_CIPHER: &str = "aes128-gcm@openssh.com";
/// The ciphers that OpenSSH proposes if none are configured, until version 9.9.
pub(super) const USUAL_CIPHERS: &str = "chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr,\
    aes128-gcm@openssh.com,aes256-gcm@openssh.com";
/// The line that ssh prints when the login is complete.
pub(super) const LOGGED_IN: &str = "zmove-logged-in";
/// Time limit for ssh to print its configuration.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of each step, unless the user's configuration sets `ConnectTimeout`.
const WAIT_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_configuration_gets_both_limits() {
        let config = SshConfig::of("hostname dtn\npermitlocalcommand no\nconnecttimeout none\n");
        assert_eq!(config.wait_max(), Duration::from_secs(20));
        assert_eq!(config.login_sign(), LoginDetection::Reported);
        assert_eq!(
            config.options(),
            [
                "-oConnectTimeout=20",
                "-oPermitLocalCommand=yes",
                "-oLocalCommand=echo zmove-logged-in"
            ]
        );
    }

    #[test]
    fn settings_of_the_user_are_kept() {
        let config = SshConfig::of(
            "hostname dtn\nconnecttimeout 7\npermitlocalcommand yes\nlocalcommand knock %h\n",
        );
        assert_eq!(config.wait_max(), Duration::from_secs(7));
        assert_eq!(config.login_sign(), LoginDetection::Unknown);
        assert!(config.options().is_empty());
    }

    #[test]
    fn connections_through_ssh_are_fast_and_end_if_the_path_is_lost() {
        let usual = SshConfig::of(&format!("ciphers {USUAL_CIPHERS}\nserveraliveinterval 0\n"));
        let ciphers = "-oCiphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,\
            aes256-ctr,aes256-gcm@openssh.com";
        assert_eq!(usual.cipher_option().as_deref(), Some(ciphers));
        assert_eq!(usual.alive_options().len(), 2);
        let chosen = SshConfig::of("ciphers aes256-ctr\nserveraliveinterval 30\n");
        assert_eq!(chosen.cipher_option(), None);
        assert!(chosen.alive_options().is_empty());
    }

    #[test]
    fn a_shared_connection_is_logged_in_before() {
        let mut config = SshConfig::of("hostname dtn\ncontrolpath /run/dtn\n");
        config.is_shared = true;
        assert_eq!(config.login_sign(), LoginDetection::AlreadyDone);
        assert_eq!(config.options(), ["-oConnectTimeout=20"]);
    }

    #[test]
    fn a_gateway_is_seen_in_the_configuration() {
        assert!(SshConfig::of("hostname dtn\nproxyjump gate\n").has_proxy());
        assert!(SshConfig::of("hostname dtn\nproxycommand nc %h 22\n").has_proxy());
        assert!(!SshConfig::of("hostname dtn\nproxycommand none\n").has_proxy());
    }

    #[test]
    fn another_program_than_openssh_gets_no_options() {
        let config = SshConfig::default();
        assert_eq!(config.login_sign(), LoginDetection::Unknown);
        assert!(config.options().is_empty());
    }
}
