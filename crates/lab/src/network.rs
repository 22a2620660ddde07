//! Several hosts and the paths between them. Each host is a network namespace. Each path is emulated separately and has
//! its own addresses at both ends.
//!
//! `network/hosts.rs` sets up two hosts with one path. **Invariant:** a path is removed before the namespaces that it
//! connects.

pub(crate) mod hosts;
mod path;
mod schedule;
pub(crate) mod star;
mod tun;

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};

use crate::processes::session::Session;
use crate::processes::{inside, run};
use crate::units::RoundTrip;
use hosts::{Emulator, LinkArgs};
use path::Path;
use tun::Segments;

/// The hosts that were set up, and the paths between them.
#[derive(Debug)]
pub(crate) struct Network {
    routes: Vec<(Pair, Arc<Route>)>,
    hosts: Arc<Namespaces>,
}

/// Two of the hosts, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Pair {
    fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }
}

impl Network {
    /// Sets up hosts without paths between them.
    pub(crate) fn open(session: &Session, names: &[&str], congestion: &str) -> Result<Self> {
        allow_congestion_control(congestion)?;
        let mut hosts = Namespaces(Vec::new());
        for name in names {
            let name = format!("zl{}-{name}", session.id());
            run::line(&format!("ip netns add {name}"))?;
            hosts.0.push(name);
            let name = &hosts.0[hosts.0.len() - 1];
            inside::on_host(name, || tune(congestion))?;
            run::line(&format!("ip -n {name} link set lo up"))?;
        }
        Ok(Self {
            routes: Vec::new(),
            hosts: Arc::new(hosts),
        })
    }

    /// Creates a path between two hosts, for both directions.
    pub(crate) fn join(
        &mut self,
        pair: Pair,
        link: &LinkArgs,
        round_trip: RoundTrip,
    ) -> Result<()> {
        let names = [pair.from, pair.to].map(|host| self.hosts.0[host].clone());
        let route = Route::open(names, self.routes.len(), link, round_trip)?;
        self.routes.push((pair, Arc::new(route)));
        Ok(())
    }

    /// Returns the path from one host to another. `None` if there is no path between them.
    pub(crate) fn between(&self, pair: Pair) -> Option<Way> {
        self.routes.iter().find_map(|(joined, route)| {
            let ends = match pair {
                pair if pair == *joined => [0, 1],
                pair if pair == joined.reversed() => [1, 0],
                _ => return None,
            };
            Some(Way {
                ends,
                route: Arc::clone(route),
                _hosts: Arc::clone(&self.hosts),
            })
        })
    }
}

/// One direction of a path. It keeps the path and its hosts alive.
#[derive(Debug)]
pub(crate) struct Way {
    /// The indexes of the source and the target among the ends of the route.
    ends: [usize; 2],
    route: Arc<Route>,
    _hosts: Arc<Namespaces>,
}

impl Way {
    /// Returns the namespaces of source and target.
    pub(crate) fn names(&self) -> [String; 2] {
        self.ends.map(|end| self.route.names[end].clone())
    }

    /// Returns the addresses of source and target.
    pub(crate) fn addresses(&self) -> [String; 2] {
        self.ends.map(|end| self.route.address(end))
    }

    /// Returns the round-trip time of the path.
    pub(crate) fn round_trip(&self) -> RoundTrip {
        self.route.round_trip
    }

    /// Returns the name of the path's device, which is the same at both ends.
    pub(crate) fn device(&self) -> &str {
        &self.route.device
    }
}

/// Network namespaces, which are removed when dropped.
#[derive(Debug)]
struct Namespaces(Vec<String>);

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            run::clean_up(&format!("ip netns del {name}"));
        }
    }
}

/// A path between two namespaces.
#[derive(Debug)]
struct Route {
    names: [String; 2],
    device: String,
    number: usize,
    round_trip: RoundTrip,
    path: Option<Path>,
}

impl Route {
    fn open(
        names: [String; 2],
        number: usize,
        link: &LinkArgs,
        round_trip: RoundTrip,
    ) -> Result<Self> {
        let mut route = Self {
            names,
            device: format!("zl{number}"),
            number,
            round_trip,
            path: None,
        };
        match link.emulator {
            Emulator::Tbf => route.join_by_tbf(link)?,
            Emulator::Netem => route.join_by_netem(link)?,
            Emulator::Auto if has_netem(&route.names[0]) => route.join_by_netem(link)?,
            Emulator::Auto | Emulator::User => route.join_by_tun(link)?,
        }
        for end in 0..route.names.len() {
            route.configure(end, link.mtu)?;
        }
        Ok(route)
    }

    fn join_by_tun(&mut self, link: &LinkArgs) -> Result<()> {
        let segments = if link.loss.0 > 0.0 {
            Segments::Cut
        } else {
            Segments::Whole
        };
        let open = |name: &str| inside::on_host(name, || tun::open(&self.device, segments));
        let (source, target) = (open(&self.names[0])?, open(&self.names[1])?);
        self.path = Some(Path::start(source, target, link.shape(self.round_trip))?);
        Ok(())
    }

    fn join_by_netem(&self, link: &LinkArgs) -> Result<()> {
        self.join_by_veth()?;
        let device = &self.device;
        let shape = link.shape(self.round_trip);
        let rate = link
            .rate
            .map_or_else(String::new, |rate| format!("rate {}bit", rate.0));
        let packets = match link.rate {
            Some(rate) => {
                (shape.queue_bytes_max + rate.bytes_in(shape.delay)) / u64::from(link.mtu) + 1
            }
            None => NETEM_PACKETS_MAX,
        };
        for name in &self.names {
            if link.loss.0 > 0.0 {
                run::line(&format!("ip -n {name} link set {device} gso_max_segs 1"))?;
            }
            run::line(&format!(
                "tc -n {name} qdisc add dev {device} root netem delay {}us loss {}% {rate} limit {packets}",
                shape.delay.as_micros(),
                link.loss.0 * 100.0,
            ))?;
        }
        Ok(())
    }

    /// Limits the rate at both ends with the kernel's token buckets, which need much less CPU time than a path in user
    /// space.
    fn join_by_tbf(&self, link: &LinkArgs) -> Result<()> {
        let shape = link.shape(self.round_trip);
        let Some(rate) = shape.rate else {
            bail!("tbf is a rate: --rate is missing")
        };
        ensure!(
            shape.delay.is_zero() && link.loss.0 == 0.0,
            "tbf has neither delay nor loss"
        );
        self.join_by_veth()?;
        let device = &self.device;
        for name in &self.names {
            run::line(&format!(
                "tc -n {name} qdisc add dev {device} root tbf rate {}bit burst {TBF_BURST_BYTES} limit {}",
                rate.0, shape.queue_bytes_max,
            ))?;
        }
        Ok(())
    }

    fn join_by_veth(&self) -> Result<()> {
        let ([source, target], device) = (&self.names, &self.device);
        run::line(&format!(
            "ip -n {source} link add {device} type veth peer name {device} netns {target}"
        ))
        .map(drop)
    }

    fn configure(&self, end: usize, mtu: u32) -> Result<()> {
        let (name, device, address, number) = (
            &self.names[end],
            &self.device,
            self.address(end),
            self.number,
        );
        run::line(&format!("ip -n {name} addr add {address}/24 dev {device}"))?;
        run::line(&format!(
            "ip -n {name} link set {device} mtu {mtu} txqueuelen {QUEUE_PACKETS} up"
        ))?;
        run::line(&format!(
            "ip -n {name} addr add fd99:{number}::{}/64 dev {device} nodad",
            end + 1
        ))?;
        Ok(())
    }

    fn address(&self, end: usize) -> String {
        format!("10.99.{}.{}", self.number, end + 1)
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            for name in &self.names {
                run::clean_up(&format!("ip -n {name} link del {}", self.device));
            }
            path.join();
        }
    }
}

/// Sets the parameters that a namespace does not inherit. Must run on a thread inside the namespace.
fn tune(congestion: &str) -> Result<()> {
    let settings = [
        ("tcp_rmem", "4096 131072 134217728"),
        ("tcp_wmem", "4096 16384 134217728"),
        ("tcp_no_metrics_save", "1"),
        ("tcp_congestion_control", congestion),
    ];
    for (name, value) in settings {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).with_context(|| format!("failed to write {value} to {path}"))?;
    }
    Ok(())
}

/// Allows a congestion control on this machine, because a namespace may use only those that the machine allows. The
/// setting is not reverted.
fn allow_congestion_control(name: &str) -> Result<()> {
    let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = fs::read_to_string(path).with_context(|| format!("failed to read {path}"))?;
    if allowed.split_whitespace().any(|word| word == name) {
        return Ok(());
    }
    fs::write(path, format!("{} {name}", allowed.trim()))
        .with_context(|| format!("failed to allow {name}"))
}

fn has_netem(namespace: &str) -> bool {
    let probe = run::line(&format!(
        "tc -n {namespace} qdisc add dev lo root netem delay 1ms"
    ));
    if probe.is_ok() {
        run::clean_up(&format!("tc -n {namespace} qdisc del dev lo root"));
    }
    probe.is_ok()
}

const QUEUE_PACKETS: u32 = 10_000;
const NETEM_PACKETS_MAX: u64 = 1_000_000;
/// Size of the token bucket: two of the 64 KiB segments that a host passes to its link. A segment larger than the
/// bucket would never pass.
const TBF_BURST_BYTES: u64 = 128 << 10;
