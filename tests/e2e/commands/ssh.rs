//! Transfers without a daemon: a stock OpenSSH server starts the receiver as the user.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::commands::pull::assert_counts;
use crate::support::command::{Outcome, ZMOVE, Zmove, finish};
use crate::support::harness::{Site, has_program, is_root, skip, write_program};
use crate::support::ports::free_port;
use crate::support::tree::{assert_same, painted};

mod bootstrap;
mod through_ssh;

/// A running sshd that accepts one key and logs in the user who runs the test.
pub(crate) struct Sshd {
    child: Child,
    address: String,
    port: u16,
    home: PathBuf,
}

/// Where an sshd runs, and how it is configured.
struct SshdPlace<'a> {
    /// The command that starts a program there.
    enter: &'a [String],
    address: &'a str,
    /// Further lines of its configuration.
    config: &'a str,
    /// Further variables of its sessions: `NAME=VALUE NAME=VALUE`.
    environment: &'a str,
}

impl Default for SshdPlace<'_> {
    fn default() -> Self {
        Self {
            enter: &[],
            address: "127.0.0.1",
            config: "",
            environment: "",
        }
    }
}

impl Sshd {
    /// Starts sshd. Returns `None` if it is missing.
    pub(crate) fn start(site: &Site) -> Option<Self> {
        Self::start_at(site, &SshdPlace::default())
    }

    fn start_at(site: &Site, place: &SshdPlace<'_>) -> Option<Self> {
        let program = ["/usr/sbin/sshd", "/usr/bin/sshd"]
            .map(Path::new)
            .into_iter()
            .find(|path| path.is_file());
        let (Some(program), true) = (program, has_program("ssh")) else {
            skip("sshd and ssh are not installed");
            return None;
        };
        let home = site.path("ssh");
        std::fs::create_dir(&home).unwrap();
        for key in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(home.join(key));
            assert!(keygen.status().unwrap().success());
        }
        std::fs::copy(home.join("user_key.pub"), home.join("authorized_keys")).unwrap();
        if is_root() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create("/run/sshd")
                .unwrap();
        }
        // Another process may take the port before sshd does.
        let started =
            (0..9).find_map(|_| Self::try_start(program, place, &home, &site.path("server")));
        Some(started.expect("a free port"))
    }

    fn try_start(
        program: &Path,
        place: &SshdPlace<'_>,
        home: &Path,
        zmove_home: &Path,
    ) -> Option<Self> {
        let port = free_port();
        let SshdPlace {
            enter,
            address,
            config,
            environment,
        } = place;
        let (directory, zmove_home) = (home.display(), zmove_home.display());
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {directory}/host_key\n\
             AuthorizedKeysFile {directory}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n\
             PermitRootLogin prohibit-password\nUseDNS no\nSetEnv ZMOVE_HOME={zmove_home} {environment}\n{config}"
        );
        std::fs::write(home.join("config"), config).unwrap();
        let mut words = enter.iter().map(AsRef::as_ref).chain([program.as_os_str()]);
        let mut sshd = Command::new(words.next().unwrap());
        sshd.args(words)
            .args(["-D", "-e", "-f"])
            .arg(home.join("config"))
            .stderr(Stdio::piped());
        let mut child = sshd.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let listens = log.any(|line| line.contains("Server listening on"));
        std::thread::spawn(move || log.for_each(drop));
        if !listens {
            child.wait().unwrap();
            return None;
        }
        Some(Self {
            child,
            address: (*address).to_owned(),
            port,
            home: home.to_owned(),
        })
    }

    /// Returns the ssh command with the options for this server.
    pub(crate) fn command(&self) -> String {
        let home = self.home.display();
        format!(
            "ssh -F none -i '{home}/user_key' -o UserKnownHostsFile='{home}/known' -o StrictHostKeyChecking=no -o LogLevel=ERROR"
        )
    }

    /// Returns the command `zmove push OPTIONS source/ TARGET` over this server.
    fn push(&self, site: &Site, options: &[&str], target: &str) -> Zmove {
        push_by(site, &self.command(), Path::new(ZMOVE), options, target)
    }

    fn run(&self, site: &Site, options: &[&str], target: &str) -> Outcome {
        self.push(site, options, target).outcome()
    }

    /// The address of the target directory over ssh.
    fn at_target(&self, site: &Site) -> String {
        self.at(&site.target())
    }

    /// The address of a directory over ssh.
    pub(crate) fn at(&self, directory: &Path) -> String {
        let directory = directory.display();
        format!("{}@{}:{}:{directory}", user(), self.address, self.port)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the command `zmove push OPTIONS source/ TARGET` with this ssh command, and with this zmove at the remote
/// end.
pub(crate) fn push_by(
    site: &Site,
    ssh: &str,
    zmove: &Path,
    options: &[&str],
    target: &str,
) -> Zmove {
    let mut push = site.zmove(&["push", "--json", "--ssh-command", ssh, "--remote-zmove"]);
    push.0.arg(zmove).args(options).arg("source/").arg(target);
    push
}

#[test]
fn a_probe_works_over_ssh() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    let mut probe = site.zmove(&[
        "probe",
        "--json",
        "--time",
        "1s",
        "--streams",
        "1,2",
        "--no-sweep",
    ]);
    probe
        .0
        .args(["--ssh-command", &sshd.command(), "--remote-zmove"])
        .arg(ZMOVE)
        .arg(sshd.at_target(&site));
    let found: serde_json::Value = serde_json::from_str(&probe.outcome().done().stdout).unwrap();
    assert_eq!(found["rounds"].as_array().unwrap().len(), 2, "{found}");
    assert_eq!(std::fs::read_dir(site.target()).unwrap().count(), 0);
}

fn user() -> String {
    let told = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(told.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

fn paint(site: &Site) {
    std::fs::create_dir(site.source().join("sub")).unwrap();
    std::fs::write(site.source().join("sub/small"), "x").unwrap();
    std::fs::write(site.source().join("large"), painted((9 << 20) + 5, 0)).unwrap();
}

/// Writes a script into the site that replaces a program.
pub(crate) fn script(site: &Site, name: &str, text: &str) -> PathBuf {
    let path = site.path(name);
    write_program(&path, &format!("#!/bin/sh\n{text}\n"));
    path
}

#[test]
fn a_tree_arrives_where_no_daemon_runs() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    for (name, options, transport, cipher) in [
        ("tcp", &["--transport", "tcp"][..], "tcp", "tls"),
        ("quic", &["--transport", "quic"], "quic", "tls"),
        ("clear", &["--cipher", "none"], "tcp", "none"),
    ] {
        let target = site.target().join(name);
        let summary = sshd.run(&site, options, &sshd.at(&target)).done().summary();
        assert_counts(&summary, &[("files", 2), ("failed", 0)]);
        assert_eq!(summary["transport"], transport, "{summary}");
        assert_eq!(summary["cipher"], cipher, "{summary}");
        assert_same(&site.source(), &target);
    }
    assert!(
        !site.path("client").join("key.pem").exists(),
        "a key for once needs no file"
    );
}

#[test]
fn a_receiver_listens_only_on_the_given_ports() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let port = free_port();
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let ports = format!("{port}-{port}");
    let push = || sshd.run(&site, &["--ssh-ports", &ports], &sshd.at_target(&site));
    let refused = push();
    assert_ne!(refused.code, Some(0));
    refused.says(&["no port of --ssh-ports is free"]);
    drop(taken);
    push().done();
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_host_without_a_user_needs_the_ssh_option() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let target = format!("127.0.0.1:{}:{}", sshd.port, site.target().display());
    sshd.run(&site, &["--ssh"], &target).done();
    assert_same(&site.source(), &site.target());
}

#[test]
fn output_of_the_login_shell_is_ignored() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let talking = script(
        &site,
        "talking",
        &format!("echo Welcome; echo; printf title; exec '{ZMOVE}' \"$@\""),
    );
    push_by(
        &site,
        &sshd.command(),
        &talking,
        &[],
        &sshd.at_target(&site),
    )
    .outcome()
    .done();
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_host_without_zmove_says_what_to_do() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let push = push_by(
        &site,
        &sshd.command(),
        Path::new("/nowhere/zmove"),
        &[],
        &sshd.at_target(&site),
    );
    let outcome = push.outcome().expect(10);
    outcome.says(&[
        "zmove: ",
        &format!(
            "ssh found no program '/nowhere/zmove' on {}@127.0.0.1",
            user()
        ),
        "--remote-zmove",
    ]);
}

/// The login to such an account succeeds, but the server then runs a program other than zmove.
#[test]
fn an_account_that_does_not_run_zmove_is_explained_in_its_own_words() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let key = std::fs::read_to_string(sshd.home.join("user_key.pub")).unwrap();
    let keys = sshd.home.join("authorized_keys");
    let hint = " (if zmove gave no reason, check that the account may run commands";
    for (command, said) in [
        ("/bin/false", format!("exit status: 1{hint}")),
        (
            "printf 'a\\nb\\n\\n sftp only.\\nGo\\r\\n'; exit 9",
            format!("exit status: 9; the host printed: 'b | sftp only. | Go'{hint}"),
        ),
        (
            "echo hello",
            format!("exit status: 0; the host printed: 'hello'{hint}"),
        ),
    ] {
        std::fs::write(&keys, format!("command=\"{command}\" {key}")).unwrap();
        sshd.run(&site, &[], &sshd.at_target(&site))
            .expect(10)
            .says(&["zmove: ssh logged in to ", "receiver was ready: ", &said])
            .lines(1);
    }
    if !is_root() {
        return skip("not root: cannot log in to an account without a shell");
    }
    std::fs::write(&keys, key).unwrap();
    let target = format!("nobody@127.0.0.1:{}:x", sshd.port);
    let refused = "exit status: 1; the host printed: 'This account is currently not available.'";
    sshd.run(&site, &[], &target)
        .expect(10)
        .says(&["ssh logged in to nobody@127.0.0.1", refused]);
}

/// The other zmove has started to listen, or refuses a request of this version.
#[test]
fn a_zmove_of_another_version_is_reported() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let receive = format!("'{ZMOVE}' \"$@\"");
    let newer = r#"sed -u 's/"version":1/"version":9/'"#;
    for (name, text) in [
        ("answers", format!("{receive} | {newer}")),
        ("refuses", format!("{newer} | {receive} | {newer}")),
    ] {
        let mut push = site.zmove(&["push", "--ssh-command", &sshd.command(), "--remote-zmove"]);
        push.0.arg(script(&site, name, &text));
        push.0.arg("source/").arg(sshd.at_target(&site));
        push.outcome()
            .expect(2)
            .says(&[
                "zmove: the peer is a zmove that speaks protocol version 9",
                "this one speaks version 1: install the same release on both hosts",
            ])
            .lines(1);
    }
}

#[test]
fn a_refused_login_is_reported() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    std::fs::write(sshd.home.join("authorized_keys"), "").unwrap();
    let ssh = format!("{} -o BatchMode=yes", sshd.command());
    let outcome = push_by(&site, &ssh, Path::new(ZMOVE), &[], &sshd.at_target(&site)).outcome();
    outcome
        .expect(10)
        .says(&["zmove: ssh could not connect to ", "127.0.0.1"]);
}

/// The limit is 15 seconds here. Tests with and without a shared ssh connection.
#[test]
fn a_login_whose_shell_hangs_ends_in_time() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let key = std::fs::read_to_string(sshd.home.join("user_key.pub")).unwrap();
    // This command ends when ssh ends.
    let hangs = format!("command=\"exec cat > /dev/null\" {key}");
    std::fs::write(sshd.home.join("authorized_keys"), hangs).unwrap();
    let ssh = format!("{} -o ConnectTimeout=15", sshd.command());
    let socket = sshd.home.join("shared");
    let shared = format!("{ssh} -o ControlPath='{}'", socket.display());
    let mut master = Command::new("sh")
        .args([
            "-c",
            &format!("exec {shared} -M -N -p {} 127.0.0.1", sshd.port),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    crate::commands::jobs::wait_for("the shared connection is up", || socket.exists());
    let outcomes = [ssh, shared]
        .map(|ssh| push_by(&site, &ssh, Path::new(ZMOVE), &[], &sshd.at_target(&site)).outcome());
    master.kill().unwrap();
    master.wait().unwrap();
    for outcome in outcomes {
        outcome.expect(10).says(&[
            "zmove: ssh logged in to ",
            "receive' did not answer within 15 s",
            "a startup file of the login shell",
        ]);
    }
}

/// The answer comes after the limit, which gives the receiver enough time on a busy machine.
#[test]
fn a_question_of_ssh_has_no_limit() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-p", "-P", "", "-N", "secret", "-f"]);
    keygen.arg(sshd.home.join("user_key"));
    assert!(keygen.status().unwrap().success());
    let answer = script(&site, "answer", "sleep 17; echo secret");
    let ssh = format!("{} -o ConnectTimeout=15", sshd.command());
    let mut push = push_by(&site, &ssh, Path::new(ZMOVE), &[], &sshd.at_target(&site));
    push.0.env("SSH_ASKPASS", answer);
    push.0.env("SSH_ASKPASS_REQUIRE", "force");
    push.outcome().done();
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_missing_ssh_is_reported() {
    let site = Site::local();
    paint(&site);
    let mut zmove = site.zmove(&["push", "--ssh-command", "/nowhere/ssh", "source/"]);
    zmove.0.arg("alice@127.0.0.1:x");
    zmove
        .outcome()
        .expect(10)
        .says(&[
            "zmove: start '/nowhere/ssh' (is ssh installed? -e gives another command): ",
            "No such file or directory",
        ])
        .lines(1);
}

#[test]
fn a_push_that_is_killed_goes_on() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    std::fs::write(site.source().join("large"), painted(40 << 20, 0)).unwrap();
    let slow = ["--limit", "8MiB"];
    let mut client = sshd.push(&site, &slow, &sshd.at_target(&site)).start();
    crate::connections::resume::wait_for_journal(&site);
    client.kill().unwrap();
    client.wait().unwrap();
    let again = sshd.push(&site, &[], &sshd.at_target(&site)).start();
    let summary = finish(again).done().summary();
    assert!(
        summary["bytes_resumed"].as_u64().unwrap() >= 4 << 20,
        "{summary}"
    );
    assert_same(&site.source(), &site.target());
}

/// `zmove receive` states its purpose to a user who runs it by hand.
#[test]
fn an_invalid_order_on_standard_input_is_reported() {
    let site = Site::local();
    for bytes in [&b""[..], b"nonsense\n", &[0xFF; 4096]] {
        let mut receive = site.zmove(&["receive"]).0;
        let mut child = receive
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The program may have ended before all bytes are written.
        drop(child.stdin.take().unwrap().write_all(bytes));
        finish(child)
            .expect(11)
            .says(&["zmove: read ", "standard input: "])
            .lines(1);
    }
}
