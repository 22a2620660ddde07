//! The network link through which packets leave this host.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use zmove_transport::PathEnds;
use zmove_types::ByteRate;

use crate::commands::doctor::finding::{Finding, Remedy};
use crate::commands::doctor::root::Root;
use crate::commands::doctor::tcp::ETHERNET_MTU;

/// The name and properties of a link, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Link {
    pub(crate) name: Option<String>,
    pub(crate) mtu: Option<u32>,
    /// Speed that the driver reports, or `None` if it reports no speed, as drivers of virtual links do.
    pub(crate) rate: Option<ByteRate>,
}

impl Link {
    /// Returns the link through which packets to `peer` leave. Without `peer`, returns the link of the default route.
    pub(crate) fn gather(root: &Root, peer: Option<IpAddr>) -> Self {
        outgoing(peer).map_or_else(Self::default, |name| Self::named(root, name))
    }

    fn named(root: &Root, name: String) -> Self {
        let file = |what: &str| format!("sys/class/net/{name}/{what}");
        let megabits = root
            .number::<f64>(&file("speed"))
            .filter(|speed| *speed > 0.0);
        let rate = megabits.map(|megabits| ByteRate(megabits * 125_000.0));
        Self {
            mtu: root.number(&file("mtu")),
            rate,
            name: Some(name),
        }
    }

    /// Checks the link. `wanted` is the rate that the path should carry.
    pub(crate) fn judge(&self, wanted: ByteRate) -> Vec<Finding> {
        let Some(name) = &self.name else {
            return vec![Finding::note("link", "unknown: no route leads there")];
        };
        vec![self.judge_speed(name, wanted), self.judge_mtu(name, wanted)]
    }

    fn judge_speed(&self, name: &str, wanted: ByteRate) -> Finding {
        match self.rate {
            None => Finding::ok("link", format!("{name}, whose speed is unknown")),
            Some(rate) if rate.0 < wanted.0 => Finding::note(
                "link",
                format!("{name} carries {rate}, less than the requested {wanted}"),
            ),
            Some(rate) => Finding::ok("link", format!("{name}, {rate}")),
        }
    }

    fn judge_mtu(&self, name: &str, wanted: ByteRate) -> Finding {
        match self.mtu {
            None => Finding::unknown("MTU", &format!("/sys/class/net/{name}/mtu")),
            Some(mtu) if mtu < JUMBO_MTU && wanted.0 >= JUMBO_RATE => {
                let text = format!(
                    "{mtu}: at {wanted}, larger packets save CPU at both ends if all links of the path support them"
                );
                Finding::note("MTU", text).with_remedy(Remedy::command(format!(
                    "ip link set dev {name} mtu {JUMBO_MTU}"
                )))
            }
            Some(mtu) if mtu < ETHERNET_MTU => Finding::note(
                "MTU",
                format!("{mtu}, less than that of Ethernet (possibly a tunnel)"),
            ),
            Some(mtu) => Finding::ok("MTU", mtu.to_string()),
        }
    }
}

/// Returns the interface that packets to an address use. If no address is given, returns the interface of the default
/// route. To find that route, the function looks up addresses that are reserved for documentation.
fn outgoing(peer: Option<IpAddr>) -> Option<String> {
    let anywhere = [
        IpAddr::from([192, 0, 2, 1]),
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    ];
    let own = peer.map_or_else(|| anywhere.into_iter().find_map(source), source)?;
    let mut interfaces = getifaddrs().ok()?;
    interfaces
        .find(|it| it.address.as_ref().and_then(ip) == Some(own))
        .map(|it| it.interface_name)
}

/// Returns the address from which this host sends to a peer. Connecting a UDP socket determines the address and sends
/// nothing.
pub(crate) fn source(peer: IpAddr) -> Option<IpAddr> {
    let ends = PathEnds::towards((peer, 9).into()).ok()?;
    Some(ends.here)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

const JUMBO_MTU: u32 = 9000;
/// Minimum rate at which jumbo frames are recommended, in bytes per second: 10 Gbit/s.
const JUMBO_RATE: f64 = 1.25e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Severity;
    use crate::commands::doctor::root::tests::Fake;

    fn rate(gbit: f64) -> ByteRate {
        ByteRate(gbit * 1.25e8)
    }

    #[test]
    fn packets_to_this_host_leave_by_its_own_link() {
        let peer = |text: &str| Some(text.parse().unwrap());
        assert_eq!(outgoing(peer("127.0.0.1")).as_deref(), Some("lo"));
        assert_eq!(
            outgoing(peer("255.255.255.255")),
            None,
            "nobody may broadcast"
        );
    }

    #[test]
    fn facts_are_read_from_the_tree() {
        let fake = Fake::of(&[
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/speed", "-1"),
            ("sys/class/net/dtn0/mtu", "9000"),
            ("sys/class/net/dtn0/speed", "100000"),
        ]);
        let link = |name: &str, mtu, gbit: Option<f64>| Link {
            name: Some(name.into()),
            mtu,
            rate: gbit.map(rate),
        };
        let named = |name: &str| Link::named(&fake.root(), name.into());
        assert_eq!(named("eth0"), link("eth0", Some(1500), None));
        assert_eq!(named("dtn0"), link("dtn0", Some(9000), Some(100.0)));
        assert_eq!(named("lo"), link("lo", None, None));
    }

    #[test]
    fn each_trouble_shows() {
        let link = |mtu, gbit: Option<f64>| Link {
            name: Some("eth0".into()),
            mtu,
            rate: gbit.map(rate),
        };
        let cases = [
            (
                link(Some(9000), Some(100.0)),
                10.0,
                [Severity::Ok, Severity::Ok],
            ),
            (
                link(Some(1500), Some(1.0)),
                1.0,
                [Severity::Ok, Severity::Ok],
            ),
            (link(Some(1500), None), 10.0, [Severity::Ok, Severity::Note]),
            (
                link(Some(9000), Some(1.0)),
                10.0,
                [Severity::Note, Severity::Ok],
            ),
            (link(Some(1280), None), 1.0, [Severity::Ok, Severity::Note]),
            (link(None, None), 1.0, [Severity::Ok, Severity::Note]),
        ];
        for (link, gbit, levels) in cases {
            let found = link.judge(rate(gbit));
            assert_eq!([found[0].level, found[1].level], levels, "{link:?}");
        }
        let small = link(Some(1500), None).judge(ByteRate(1.25e9));
        assert_eq!(
            small[1].mend[0].run.as_deref(),
            Some("ip link set dev eth0 mtu 9000")
        );
        assert_eq!(
            Link::default().judge(ByteRate(1.0))[0].level,
            Severity::Note
        );
    }
}
