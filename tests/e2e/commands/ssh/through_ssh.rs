//! Data through ssh: the lanes are connections that one login forwards.

use std::fs::read_dir;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Sshd, SshdPlace, paint, push_by, script, user};
use crate::commands::jobs::wait_for;
use crate::commands::pull::assert_counts;
use crate::connections::resume::wait_for_journal;
use crate::lanes::black_hole::Host;
use crate::support::command::{Outcome, ZMOVE, Zmove, finish, wait_within_patience};
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::tree::{assert_same, painted};

/// The directory of the sockets of all commands of a site.
fn sockets(site: &Site) -> PathBuf {
    let directory = site.path("run");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Returns the command with its sockets in the site.
fn with_sockets(site: &Site, mut zmove: Zmove) -> Zmove {
    zmove.0.env("XDG_RUNTIME_DIR", sockets(site));
    zmove
}

fn push(site: &Site, ssh: &str, options: &[&str], target: &str) -> Zmove {
    with_sockets(site, push_by(site, ssh, Path::new(ZMOVE), options, target))
}

/// `zmove COMMAND --via ssh OPTIONS FROM TO`.
fn run(site: &Site, sshd: &Sshd, words: &[&str]) -> Outcome {
    let (command, words) = words.split_first().unwrap();
    let ssh = sshd.command();
    let options = [
        "--via",
        "ssh",
        "--ssh-command",
        &ssh,
        "--remote-zmove",
        ZMOVE,
    ];
    let zmove = site.zmove(&[&[*command][..], &options, words].concat());
    with_sockets(site, zmove).outcome()
}

/// Expects that the command has left no socket.
#[track_caller]
fn assert_no_sockets(site: &Site) {
    assert_eq!(read_dir(sockets(site)).unwrap().count(), 0);
}

/// Returns the ssh processes that a command has started.
fn children(of: &Child) -> Vec<Pid> {
    let tasks = read_dir(format!("/proc/{}/task", of.id())).unwrap();
    let lists = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")));
    let pids = lists.flat_map(|list| {
        let list = list.unwrap_or_default();
        let pids = list.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.collect::<Vec<i32>>()
    });
    pids.map(|pid| Pid::from_raw(pid).unwrap()).collect()
}

fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z"))
}

/// Two hosts. Only one port passes from the near one to the far one. All other packets vanish.
struct Firewall {
    near: Host,
    far: Host,
}

impl Firewall {
    fn new() -> Option<Self> {
        let programs = ["unshare", "nsenter", "ip"];
        if !is_root() || !programs.into_iter().all(has_program) {
            skip("hosts with a firewall between them need root, unshare, nsenter and ip");
            return None;
        }
        let (Some(near), Some(far)) = (Host::start(), Host::start()) else {
            skip("this kernel does not let us make a network namespace");
            return None;
        };
        near.run(&format!(
            "ip link add name path type veth peer name path netns {}
            ip addr add 10.9.1.1/24 dev path
            ip link set dev path up
            ip link add name nowhere type veth peer name nobody
            ip link set dev nowhere up
            ip link set dev nobody up
            ip neigh add 10.9.1.2 lladdr 02:00:00:00:00:01 dev nowhere nud permanent",
            far.id()
        ));
        far.run("ip addr add 10.9.1.2/24 dev path; ip link set dev path up");
        Some(Self { near, far })
    }

    /// Lets only this port pass from now on.
    fn close_except(&self, port: u16) {
        self.near.run(&format!(
            "ip route add 10.9.1.2 dev nowhere table 100
            ip rule add to 10.9.1.2 priority 2 table 100
            ip rule add to 10.9.1.2 ipproto tcp dport {port} priority 1 table main"
        ));
    }

    /// Lets packets of UDP pass from now on.
    fn open_for_udp(&self) {
        self.near
            .run("ip rule add to 10.9.1.2 ipproto udp priority 1 table main");
    }

    /// Lets all packets pass from now on.
    fn open(&self) {
        self.near.run("ip rule del priority 2");
    }

    /// Starts an ssh server on the far host, and moves the site's commands to the near one.
    fn sshd(&self, site: &mut Site) -> Option<Sshd> {
        let enter = self.far.words();
        let place = SshdPlace {
            enter: &enter,
            address: "10.9.1.2",
            ..SshdPlace::default()
        };
        let sshd = Sshd::start_at(site, &place)?;
        self.close_except(sshd.port);
        self.near.runs(site);
        paint(site);
        Some(sshd)
    }
}

#[test]
fn data_goes_through_ssh_where_only_ssh_passes() {
    let Some(firewall) = Firewall::new() else {
        return;
    };
    let mut site = Site::local();
    let Some(sshd) = firewall.sshd(&mut site) else {
        return;
    };
    let target = sshd.at(&site.target());
    let pushed = push(&site, &sshd.command(), &[], &target).outcome();
    let pushed = pushed.expect(0).says(&[
        "zmove: the receiver's port at 10.9.1.2 does not answer; the data goes through ssh",
    ]);
    let summary = pushed.summary();
    assert_counts(&summary, &[("files", 2), ("failed", 0)]);
    assert_eq!(summary["transport"], "ssh", "{summary}");
    assert_eq!(summary["cipher"], "tls", "{summary}");
    assert_same(&site.source(), &site.target());
    let direct = push(&site, &sshd.command(), &["--via", "direct"], &target).outcome();
    direct
        .expect(10)
        .says(&["if a firewall blocks its port", "--ssh-ports"]);
    assert_no_sockets(&site);
    let is_remembered = || {
        let ports = std::fs::read_to_string(site.path("client").join("closed-ports")).unwrap();
        ports.contains("10.9.1.2:")
    };
    assert!(is_remembered());
    firewall.open();
    let pushed = push(&site, &sshd.command(), &[], &target).outcome().done();
    assert_eq!(pushed.summary()["transport"], "tcp");
    assert!(!is_remembered(), "the port answers again");
}

#[test]
fn data_does_not_go_through_ssh_where_quic_passes() {
    let Some(firewall) = Firewall::new() else {
        return;
    };
    let mut site = Site::local();
    let Some(sshd) = firewall.sshd(&mut site) else {
        return;
    };
    firewall.open_for_udp();
    let pushed = push(&site, &sshd.command(), &[], &sshd.at_target(&site)).outcome();
    assert_eq!(pushed.done().summary()["transport"], "quic");
    assert_same(&site.source(), &site.target());
}

#[test]
fn all_transfers_work_through_ssh() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let target = sshd.at(&site.target());
    run(&site, &sshd, &["push", "source/", &target]).done();
    assert_same(&site.source(), &site.target());
    run(&site, &sshd, &["verify", "source/", &target]).done();
    let back = site.path("back");
    let source = format!("{target}/");
    let pulled = run(
        &site,
        &sshd,
        &["pull", "--json", &source, back.to_str().unwrap()],
    );
    assert_eq!(pulled.done().summary()["transport"], "ssh");
    assert_same(&site.source(), &back);
    std::fs::remove_file(site.source().join("sub/small")).unwrap();
    std::fs::write(site.source().join("new"), "new").unwrap();
    let mirror = ["push", "--delete", "source/", &target];
    let planned = run(&site, &sshd, &[&mirror[..], &["--dry-run"]].concat()).done();
    assert!(planned.stdout.contains("1 to add"), "{}", planned.stdout);
    run(&site, &sshd, &[&mirror[..], &["--cipher", "none"]].concat()).done();
    assert_same(&site.source(), &site.target());
    assert_no_sockets(&site);
}

#[test]
fn lanes_are_sessions_where_a_server_forwards_nothing() {
    let site = Site::local();
    for (name, max_sessions) in [("usual", 10), ("few", 3)] {
        let place = SshdPlace {
            config: &format!("AllowTcpForwarding no\nMaxSessions {max_sessions}\n"),
            ..SshdPlace::default()
        };
        let Some(sshd) = Sshd::start_at(&site, &place) else {
            return;
        };
        if name == "usual" {
            paint(&site);
        }
        let target = site.target().join(name);
        let words = ["push", "--json", "source/", &sshd.at(&target)];
        let pushed = run(&site, &sshd, &words).expect(0).says(&[
            "zmove: the ssh server at 127.0.0.1 forwards no connections; the data uses sessions of the login",
            "MaxSessions",
        ]);
        let summary = pushed.summary();
        assert_eq!(summary["transport"], "ssh", "{summary}");
        assert_eq!(summary["cipher"], "tls", "{summary}");
        assert_eq!(
            summary["lanes"].as_u64() >= Some(2),
            name == "usual",
            "{summary}"
        );
        assert_same(&site.source(), &target);
        let back = site.path(&format!("back-{name}"));
        let from = format!("{}/", sshd.at(&target));
        run(&site, &sshd, &["pull", &from, back.to_str().unwrap()]).expect(0);
        assert_same(&site.source(), &back);
        assert_no_sockets(&site);
        drop(sshd);
        std::fs::remove_dir_all(site.path("ssh")).unwrap();
    }
}

#[test]
fn a_server_that_permits_neither_channels_nor_sessions_is_named() {
    let site = Site::local();
    let place = SshdPlace {
        config: "AllowTcpForwarding no\nMaxSessions 1\n",
        ..SshdPlace::default()
    };
    let Some(sshd) = Sshd::start_at(&site, &place) else {
        return;
    };
    paint(&site);
    let target = sshd.at_target(&site);
    run(&site, &sshd, &["push", "source/", &target])
        .expect(10)
        .says(&[
            "zmove: send data through ssh: ",
            "AllowTcpForwarding",
            "MaxSessions",
        ]);
    assert_no_sockets(&site);
    // The port answers, so the login is not asked.
    let pushed = push(&site, &sshd.command(), &[], &target).outcome().done();
    assert_eq!(pushed.summary()["transport"], "tcp");
    assert_no_sockets(&site);
}

/// Such a script may pass the options to another host or user, where they fail.
#[test]
fn a_script_around_ssh_that_cannot_be_a_master_logs_in_once_more_without_questions() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let log = site.path("log");
    let wrapper = script(
        &site,
        "wrapper",
        &format!(
            "case \"$*\" in *receive*) echo \"$*\" >> '{}';; esac\n\
             case \"$*\" in *-S*receive*) exit 255;; esac\n\
             exec {} \"$@\"",
            log.display(),
            sshd.command()
        ),
    );
    let wrapper = wrapper.to_str().unwrap();
    let target = sshd.at_target(&site);
    let pushed = push(&site, wrapper, &[], &target).outcome().done();
    assert_eq!(pushed.summary()["transport"], "tcp");
    assert_same(&site.source(), &site.target());
    let logins = std::fs::read_to_string(log).unwrap();
    let batch: Vec<_> = logins
        .lines()
        .map(|login| login.contains("BatchMode=yes"))
        .collect();
    assert_eq!(batch, [false, true], "{logins}");
    assert_no_sockets(&site);
}

#[test]
fn a_user_may_ask_for_a_master() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let socket = site.path("master");
    let own = format!("{} -M", sshd.command());
    let with_path = format!("{own} -S '{}'", socket.display());
    for (name, ssh) in [("own", own), ("path", with_path)] {
        let target = site.target().join(name);
        let pushed = push(&site, &ssh, &["--via", "ssh"], &sshd.at(&target)).outcome();
        assert_eq!(pushed.done().summary()["transport"], "ssh");
        assert_same(&site.source(), &target);
        assert_no_sockets(&site);
    }
}

#[test]
fn a_push_that_is_killed_before_the_login_leaves_nothing() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let started = site.path("started");
    let hold = site.path("hold");
    let made = Command::new("mkfifo").arg(&hold).status().unwrap();
    assert!(made.success());
    let proxy = script(
        &site,
        "proxy",
        &format!(
            "echo > '{}'; exec cat '{}'",
            started.display(),
            hold.display()
        ),
    );
    let ssh = format!("{} -o ProxyCommand='{}'", sshd.command(), proxy.display());
    let mut client = push(&site, &ssh, &[], &sshd.at_target(&site)).start();
    wait_for("ssh connects", || started.exists());
    let ssh = children(&client);
    client.kill().unwrap();
    wait_within_patience(&mut client);
    assert_no_sockets(&site);
    drop(std::fs::OpenOptions::new().write(true).open(hold).unwrap());
    wait_for("ssh ends", || !ssh.iter().copied().any(runs));
    assert_no_sockets(&site);
}

#[test]
fn a_command_around_ssh_is_not_used_for_data() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let target = sshd.at_target(&site);
    let wrapped = format!("env {}", sshd.command());
    let refused = push(&site, &wrapped, &["--via", "ssh"], &target).outcome();
    refused
        .expect(10)
        .says(&["zmove: send data through ssh: 'env' must be OpenSSH"]);
    push(&site, &wrapped, &[], &target).outcome().done();
    assert_same(&site.source(), &site.target());
}

#[test]
fn logins_that_the_user_shares_are_not_disturbed() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let socket = site.path("shared");
    let shared = format!(
        "{} -o ControlMaster=auto -o ControlPersist=60 -o ControlPath='{}'",
        sshd.command(),
        socket.display()
    );
    let target = |name: &str| site.target().join(name);
    let push_to = |name: &str| {
        let to = sshd.at(&target(name));
        let pushed = push(&site, &shared, &["--via", "ssh"], &to).outcome();
        assert_eq!(pushed.done().summary()["transport"], "ssh");
        assert_same(&site.source(), &target(name));
        assert_no_sockets(&site);
    };
    push_to("own");
    let ssh = |words: &str| {
        let host = format!("-p {} {}@127.0.0.1", sshd.port, user());
        let mut ssh = Command::new("sh");
        ssh.args(["-c", &format!("exec {shared} {words} {host}")]);
        ssh.stdout(Stdio::null()).stderr(Stdio::null());
        ssh.status().unwrap().success()
    };
    assert!(
        ssh("-O check"),
        "the push has created the login that the user shares"
    );
    push_to("shared");
    assert!(ssh("-O check"), "the user's login is still there");
    assert!(ssh("-O exit"));
}

#[test]
fn a_push_continues_after_its_ssh_is_killed() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    std::fs::write(site.source().join("large"), painted(40 << 20, 0)).unwrap();
    let slow = ["--via", "ssh", "--limit", "8MiB"];
    let client = push(&site, &sshd.command(), &slow, &sshd.at_target(&site)).start();
    wait_for_journal(&site);
    let ssh = children(&client);
    assert_eq!(ssh.len(), 1, "one login");
    kill_process(ssh[0], Signal::KILL).unwrap();
    let outcome = finish(client).expect(0);
    let summary = outcome.summary();
    assert_eq!(summary["reconnects"], 1, "{summary}");
    assert_same(&site.source(), &site.target());
    assert_no_sockets(&site);
}

#[test]
fn a_killed_push_leaves_no_ssh_and_no_socket() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    std::fs::write(site.source().join("large"), painted(40 << 20, 0)).unwrap();
    let slow = ["--via", "ssh", "--limit", "8MiB"];
    let mut client = push(&site, &sshd.command(), &slow, &sshd.at_target(&site)).start();
    wait_for_journal(&site);
    let ssh = children(&client);
    let receiver = crate::connections::one_writer::receiver_over_ssh(&site);
    assert_no_sockets(&site);
    client.kill().unwrap();
    wait_within_patience(&mut client);
    wait_for("ssh and the receiver end", || {
        !ssh.iter().copied().chain([receiver]).any(runs)
    });
    assert_no_sockets(&site);
}

/// The name of the target is known only at the gateway.
#[test]
fn a_gateway_of_the_user_is_used() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let gateway = script(
        &site,
        "gateway",
        &format!(
            "exec {} -p {} -W 127.0.0.1:{} {}@127.0.0.1",
            sshd.command(),
            sshd.port,
            sshd.port,
            user()
        ),
    );
    let ssh = format!("{} -o ProxyCommand='{}'", sshd.command(), gateway.display());
    // The receiver reports an address behind the gateway, which does not answer here.
    let behind = script(
        &site,
        "behind",
        &format!("exec env SSH_CONNECTION='198.51.100.1 1 198.51.100.7 22' '{ZMOVE}' \"$@\""),
    );
    let target = format!("{}@far.invalid:22:{}", user(), site.target().display());
    let pushed = with_sockets(&site, push_by(&site, &ssh, &behind, &[], &target)).outcome();
    let summary = pushed
        .expect(0)
        .says(&["the data goes through ssh"])
        .summary();
    assert_eq!(summary["transport"], "ssh", "{summary}");
    assert_same(&site.source(), &site.target());
}
