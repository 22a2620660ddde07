//! The link by which packets leave.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zmove_types::ByteRate;

use crate::commands::doctor::finding::{Finding, Mend};
use crate::commands::doctor::root::Root;
use crate::commands::doctor::tcp::ETHERNET_MTU;

/// What is known of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: Option<String>,
    pub(crate) mtu: Option<u32>,
    /// What its driver says; virtual ones do not know.
    pub(crate) megabits: Option<u64>,
}

impl Link {
    /// The link to an address, else that of the default route.
    pub(crate) fn gather(root: &Root, peer: Option<IpAddr>) -> Self {
        let Some(name) = outgoing(root, peer) else { return Self::default() };
        let file = |what: &str| format!("sys/class/net/{name}/{what}");
        let megabits = root.number::<i64>(&file("speed")).and_then(|speed| u64::try_from(speed).ok());
        Self {
            mtu: root.number(&file("mtu")),
            megabits: megabits.filter(|&speed| speed > 0),
            name: Some(name),
        }
    }

    /// Its speed.
    pub(crate) fn rate(&self) -> Option<ByteRate> {
        self.megabits.map(|megabits| ByteRate(zmove_types::ByteCount(megabits).as_f64() * 125_000.0))
    }

    /// `wanted` is the rate that is asked of the path.
    pub(crate) fn judge(&self, wanted: ByteRate) -> Vec<Finding> {
        let Some(name) = &self.name else {
            return vec![Finding::unknown("link", "/proc/net/route")];
        };
        vec![self.judge_speed(name, wanted), self.judge_mtu(name, wanted)]
    }

    fn judge_speed(&self, name: &str, wanted: ByteRate) -> Finding {
        match self.rate() {
            None => Finding::ok("link", format!("{name}, whose speed is unknown")),
            Some(rate) if rate.0 < wanted.0 => Finding::note(
                "link",
                format!("{name} carries {rate}, less than the {wanted} that are asked for"),
            ),
            Some(rate) => Finding::ok("link", format!("{name}, {rate}")),
        }
    }

    fn judge_mtu(&self, name: &str, wanted: ByteRate) -> Finding {
        match self.mtu {
            None => Finding::unknown("MTU", &format!("/sys/class/net/{name}/mtu")),
            Some(mtu) if mtu < JUMBO_MTU && wanted.0 >= JUMBO_RATE => {
                let text = format!(
                    "{mtu}: at {wanted} larger packets save CPU at both ends, where all links of the path take them"
                );
                Finding::note("MTU", text)
                    .mended_by(Mend::command(format!("ip link set dev {name} mtu {JUMBO_MTU}")))
            }
            Some(mtu) if mtu < ETHERNET_MTU => {
                Finding::note("MTU", format!("{mtu}, less than Ethernet carries: a tunnel?"))
            }
            Some(mtu) => Finding::ok("MTU", mtu.to_string()),
        }
    }
}

/// The interface that the kernel's tables send an address to; without one that of the default route.
fn outgoing(root: &Root, peer: Option<IpAddr>) -> Option<String> {
    let table_v4 = || root.text("proc/net/route").unwrap_or_default();
    let table_v6 = || root.text("proc/net/ipv6_route").unwrap_or_default();
    match peer {
        Some(peer) if peer.is_loopback() => Some("lo".into()),
        Some(IpAddr::V4(peer)) => route_v4(&table_v4(), peer),
        Some(IpAddr::V6(peer)) => route_v6(&table_v6(), peer),
        None => route_v4(&table_v4(), Ipv4Addr::UNSPECIFIED)
            .or_else(|| route_v6(&table_v6(), Ipv6Addr::UNSPECIFIED)),
    }
}

/// A route that fits an address.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit<'a> {
    prefix: u32,
    /// The smaller metric is preferred.
    metric: std::cmp::Reverse<u32>,
    interface: &'a str,
}

/// The table of `/proc/net/route`: addresses are hexadecimal, in the byte order of the network as this host
/// reads a number.
fn route_v4(table: &str, peer: Ipv4Addr) -> Option<String> {
    let fits = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[interface, destination, _, flags, _, _, metric, mask, ..] = fields.as_slice() else {
            return None;
        };
        let hex = |text| u32::from_str_radix(text, 16).ok();
        let destination = u32::from_be(hex(destination)?);
        let mask = u32::from_be(hex(mask)?);
        let is_up = hex(flags)? & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP;
        let fit =
            Fit { prefix: mask.count_ones(), metric: std::cmp::Reverse(metric.parse().ok()?), interface };
        (is_up && peer.to_bits() & mask == destination).then_some(fit)
    });
    fits.max().map(|fit| fit.interface.to_owned())
}

/// The table of `/proc/net/ipv6_route`: all numbers are hexadecimal.
fn route_v6(table: &str, peer: Ipv6Addr) -> Option<String> {
    let fits = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[destination, prefix, _, _, _, metric, _, _, flags, interface] = fields.as_slice() else {
            return None;
        };
        let hex = |text| u32::from_str_radix(text, 16).ok();
        let destination = u128::from_str_radix(destination, 16).ok()?;
        let prefix = hex(prefix)?;
        let mask = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
        let is_up = hex(flags)? & (ROUTE_UP | ROUTE_REJECT) == ROUTE_UP;
        let fit = Fit { prefix, metric: std::cmp::Reverse(hex(metric)?), interface };
        (is_up && peer.to_bits() & mask == destination).then_some(fit)
    });
    fits.max().map(|fit| fit.interface.to_owned())
}

/// `RTF_UP` and `RTF_REJECT`.
const ROUTE_UP: u32 = 1;
const ROUTE_REJECT: u32 = 0x200;
const JUMBO_MTU: u32 = 9000;
/// In bytes per second: 10 Gbit/s.
const JUMBO_RATE: f64 = 1.25e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;
    use crate::commands::doctor::root::tests::Fake;

    const V4: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
dtn0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
down0\t0007010A\t00000000\t0000\t0\t0\t0\t00FFFFFF\t0\t0\t0";

    const V6: &str = "\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_longest_prefix_and_then_the_metric_decide() {
        let v4 = |address: &str| route_v4(V4, address.parse().unwrap()).unwrap();
        assert_eq!([v4("192.0.2.7"), v4("10.9.0.1"), v4("10.1.7.1")], ["eth0", "eth1", "dtn0"]);
        let v6 = |address: &str| route_v6(V6, address.parse().unwrap()).unwrap();
        assert_eq!([v6("2001:db8::1"), v6("fd00::9")], ["eth0", "eth1"]);
        assert_eq!((route_v4("", Ipv4Addr::LOCALHOST), route_v6("x", Ipv6Addr::LOCALHOST)), (None, None));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn facts_are_read_from_the_tree() {
        let fake = Fake::of(&[
            ("proc/net/route", V4),
            ("proc/net/ipv6_route", V6),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/speed", "-1"),
            ("sys/class/net/dtn0/mtu", "9000"),
            ("sys/class/net/dtn0/speed", "100000"),
        ]);
        let link = |name: &str, mtu, megabits| Link { name: Some(name.into()), mtu, megabits };
        let gather = |peer: Option<&str>| Link::gather(&fake.root(), peer.map(|peer| peer.parse().unwrap()));
        assert_eq!(gather(None), link("eth0", Some(1500), None));
        assert_eq!(gather(Some("10.1.0.2")), link("dtn0", Some(9000), Some(100_000)));
        assert_eq!(gather(Some("127.0.0.1")), link("lo", None, None));
        assert_eq!(gather(Some("fd00::9")), link("eth1", None, None));
        let only_v6 = Fake::of(&[("proc/net/ipv6_route", V6)]);
        assert_eq!(Link::gather(&only_v6.root(), None), link("eth0", None, None));
        assert_eq!(Link::gather(&Fake::of(&[]).root(), None), Link::default());
    }

    #[test]
    fn each_trouble_shows() {
        let link = |mtu, megabits| Link { name: Some("eth0".into()), mtu, megabits };
        let cases = [
            (link(Some(9000), Some(100_000)), 10.0, [Level::Ok, Level::Ok]),
            (link(Some(1500), Some(1000)), 1.0, [Level::Ok, Level::Ok]),
            (link(Some(1500), None), 10.0, [Level::Ok, Level::Note]),
            (link(Some(9000), Some(1000)), 10.0, [Level::Note, Level::Ok]),
            (link(Some(1280), None), 1.0, [Level::Ok, Level::Note]),
            (link(None, None), 1.0, [Level::Ok, Level::Note]),
        ];
        for (link, gbit, levels) in cases {
            let found = link.judge(ByteRate(gbit * 1.25e8));
            assert_eq!([found[0].level, found[1].level], levels, "{link:?}");
        }
        let small = link(Some(1500), None).judge(ByteRate(1.25e9));
        assert_eq!(small[1].mend[0].run.as_deref(), Some("ip link set dev eth0 mtu 9000"));
        assert_eq!(Link::default().judge(ByteRate(1.0))[0].level, Level::Note);
    }
}
