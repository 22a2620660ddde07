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
fn a_server_that_forwards_nothing_is_named() {
    let site = Site::local();
    let place = SshdPlace {
        config: "AllowTcpForwarding no\n",
        ..SshdPlace::default()
    };
    let Some(sshd) = Sshd::start_at(&site, &place) else {
        return;
    };
    paint(&site);
    let target = sshd.at_target(&site);
    let refused = run(&site, &sshd, &["push", "source/", &target]);
    refused.expect(10).says(&[
        "zmove: connect to 127.0.0.1:",
        "through ssh: the ssh server there does not forward connections",
        "AllowTcpForwarding",
    ]);
    assert_no_sockets(&site);
    // The port answers, so the login is not asked.
    let pushed = push(&site, &sshd.command(), &[], &target).outcome().done();
    assert_eq!(pushed.summary()["transport"], "tcp");
    assert_no_sockets(&site);
}

/// The wrapper answers questions about the configuration like ssh, but it takes no options of a master.
#[test]
fn a_wrapper_of_ssh_gets_no_options_of_a_master() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let body = format!(
        "case \"$*\" in *ControlMaster*) exit 255;; esac; exec {} \"$@\"",
        sshd.command()
    );
    let wrapper = script(&site, "wrapper", &body);
    let target = sshd.at_target(&site);
    push(&site, wrapper.to_str().unwrap(), &[], &target)
        .outcome()
        .done();
    assert_same(&site.source(), &site.target());
}

/// A second option would make ssh ask for a confirmation of each order.
#[test]
fn a_command_that_makes_each_login_a_master_is_used_for_data() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(&site);
    let master = format!("{} -M", sshd.command());
    let pushed = push(&site, &master, &["--via", "ssh"], &sshd.at_target(&site)).outcome();
    assert_eq!(pushed.done().summary()["transport"], "ssh");
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
    let ssh = |words: &str| {
        let host = format!("-p {} {}@127.0.0.1", sshd.port, user());
        let mut ssh = Command::new("sh");
        ssh.args(["-c", &format!("exec {shared} {words} {host}")]);
        ssh.stdout(Stdio::null()).stderr(Stdio::null());
        ssh.status().unwrap().success()
    };
    push_to("first");
    assert!(ssh("-O check"), "as after any use of this ssh");
    push_to("second");
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
