//! Screens that show the messages about a user's mistakes. Each screen states the failure, the path and side, the
//! cause, and the remedy.
//!
//! Each file in `mistakes/` is one case with many screens, which run one after another in one site:
//!
//! ```text
//! # The heading of a screen
//! + a shell command that prepares it
//! $ the shell command of the user
//!   what it prints on standard error, without empty lines
//!   [its exit code]
//! ```
//!
//! With `ZMOVE_WRITE_SCREENS` in the environment, the test writes the screens instead of comparing them. **Invariant:**
//! a screen has no text that differs between two runs: [`Screens::mask`] replaces addresses, keys and the directory by
//! the names of the variables that contain them.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use crate::support::command::{Outcome, ZMOVE};
use crate::support::harness::{Site, copy_program, has_program, skip, write_program};
use crate::support::namespace::Namespace;
use crate::support::ports::free_address;
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{paint, set_mode};

/// The user's shell, with the variables that commands may use.
struct Screens {
    site: Site,
    /// Names and values, in the order in which values are replaced by names.
    variables: Vec<(&'static str, String)>,
}

impl Screens {
    /// Starts a daemon that lets the user write to `target` and read `source`.
    fn new(mut site: Site) -> Self {
        paint(site.source().join("f"), 10);
        site.let_read("source");
        site.start_daemon();
        let nobody = free_address();
        let other = ssh_server();
        let directory = site.path("").canonicalize().unwrap();
        let variables = vec![
            ("DAEMON", site.the_daemon().address.to_string()),
            ("NOBODY", nobody.to_string()),
            ("NOBODY_PORT", nobody.port().to_string()),
            ("OTHER", other.to_string()),
            ("OTHER_PORT", other.port().to_string()),
            ("SITE", directory.display().to_string()),
        ];
        let program = site.path("zmove");
        if !program.exists() && std::fs::hard_link(ZMOVE, &program).is_err() {
            copy_program(Path::new(ZMOVE), &program);
        }
        write_program(&site.path("ssh"), FAKE_SSH);
        site.give_away();
        site.run_by("/bin/sh".into());
        Self { site, variables }
    }

    fn run(&self, command: &str) -> Outcome {
        // Entering a mount namespace changes the working directory.
        let mut shell = self
            .site
            .zmove(&["-c", &format!("cd \"$SITE\" && {command}")]);
        let own = self.site.path("");
        let usual = std::env::var("PATH").unwrap();
        shell
            .0
            .env("PATH", format!("{}:{usual}", own.display()))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("HOME", self.site.path("home"))
            .env_remove("NO_COLOR");
        shell.outcome()
    }

    /// Runs all commands of a file, and returns the file with the screens that they print.
    fn play(&self, text: &str) -> String {
        let mut played = String::new();
        for line in text.lines().filter(|line| !line.starts_with("  ")) {
            played += &format!("{line}\n");
            if let Some(command) = line.strip_prefix("+ ") {
                self.run(command).expect(0);
            } else if let Some(command) = line.strip_prefix("$ ") {
                let Outcome { code, stderr, .. } = self.run(command);
                let code = code.map_or("none".to_owned(), |code| code.to_string());
                let screen = format!("{}\n[{code}]", self.mask(&stderr));
                let lines = screen.lines().filter(|line| !line.is_empty());
                lines.for_each(|line| played += &format!("  {line}\n"));
            }
        }
        played
    }

    /// Replaces the values of variables by their names, and fingerprints by `SHA256:KEY`.
    fn mask(&self, screen: &str) -> String {
        let masked = self
            .variables
            .iter()
            .fold(screen.to_owned(), |text, (name, value)| {
                text.replace(value.trim_end_matches('/'), &format!("${name}"))
            });
        let mut parts = masked.split("SHA256:");
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |text, part| {
            let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
            let key = part.bytes().take_while(|byte| is_key(*byte)).count();
            match key {
                FINGERPRINT_CHARS => text + "SHA256:KEY" + &part[key..],
                _ => text + "SHA256:" + part,
            }
        })
    }
}

/// Number of characters after `SHA256:` in a fingerprint.
const FINGERPRINT_CHARS: usize = 43;

/// Stands in for ssh: it logs in at once and runs the last word on this host. The first word names the fault.
const FAKE_SSH: &str = r#"#!/bin/sh
fault=$1
for command in "$@"; do
    case $command in -G) exit 1;; esac
done
case $fault in
    refused) echo "ssh: connect to host dtn port 22: Connection refused" >&2; exit 255;;
    denied) echo "alice@dtn: Permission denied (publickey)." >&2; exit 255;;
    unknown) echo "Host key verification failed." >&2; exit 255;;
    missing) echo "sh: 1: $command: not found" >&2; exit 127;;
    noexec) echo "sh: 1: $command: Permission denied" >&2; exit 126;;
    newer) sh -c "$command" | sed -u 's/"version":1/"version":9/';;
    blocked) sh -c "$command" | sed -u 's/"port":[0-9]*/"port":'"$NOBODY_PORT"'/';;
    *) sh -c "$command";;
esac
"#;

/// Listens on a port like a server of ssh, and returns its address.
fn ssh_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The client may have disconnected.
            drop(stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n"));
        }
    });
    address
}

/// Compares the screens of a file with the current output of its commands, or writes that output to the file.
#[track_caller]
fn assert_screens(screens: &Screens, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/e2e/commands/mistakes")
        .join(name);
    let expected = std::fs::read_to_string(&path).unwrap();
    let played = screens.play(&expected);
    if std::env::var_os("ZMOVE_WRITE_SCREENS").is_some() {
        return std::fs::write(path, played).unwrap();
    }
    let mut lines = expected.lines().zip(played.lines());
    let first = lines.find(|(expected, played)| expected != played);
    assert!(
        expected == played,
        "{first:?} in {name} (ZMOVE_WRITE_SCREENS=1 writes the screens):\n{played}"
    );
}

/// Plays a file as a user without privileges.
fn as_user(name: &str) {
    if let Some(site) = Site::unprivileged() {
        assert_screens(&Screens::new(site), name);
    }
}

#[test]
fn of_paths() {
    as_user("paths.txt");
}

#[test]
fn of_hosts() {
    // Some screens show that nobody listens on a port, which a daemon of another case may take.
    let _quiet = quiet_machine();
    as_user("hosts.txt");
}

#[test]
fn of_ssh() {
    as_user("ssh.txt");
}

#[test]
fn of_options() {
    as_user("options.txt");
}

#[test]
fn of_jobs() {
    as_user("jobs.txt");
}

#[test]
fn of_operators() {
    as_user("operators.txt");
}

#[test]
fn of_certificates() {
    if !has_program("openssl") {
        return skip("openssl is missing: no certificate can be issued");
    }
    as_user("certificates.txt");
}

/// Mounts need root.
#[test]
fn of_storage() {
    if let Some(site) = Site::within(|target| Namespace::with_small_disk(target, 1 << 20)) {
        set_mode(site.path(""), 0o755);
        assert_screens(&Screens::new(site), "storage.txt");
    }
}
