//! The four sites and the assumed paths between them.
//!
//! The locations of the sites and some observed rates between them are known. The round-trip times and the rates of
//! most access links are not known, and are derived here with simple arithmetic.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::units::{Rate, RoundTrip};

/// A site of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Site {
    /// The site of COSMA.
    Durham,
    /// The site of ARCHER2 and Tursa.
    Edinburgh,
    /// The site of CSD3.
    Cambridge,
    /// The site of JASMIN.
    #[serde(rename = "RAL")]
    Ral,
}

impl Site {
    /// All sites, in the order of the table.
    pub(crate) const ALL: [Self; 4] = [Self::Durham, Self::Edinburgh, Self::Cambridge, Self::Ral];

    /// Returns the site's name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Durham => "Durham",
            Self::Edinburgh => "Edinburgh",
            Self::Cambridge => "Cambridge",
            Self::Ral => "RAL",
        }
    }

    /// Returns the name of the site's host, which is part of the namespace's name.
    pub(crate) fn host_name(self) -> String {
        self.name().to_lowercase()
    }

    /// Returns the location of the site's computing center.
    fn place(self) -> Place {
        let (north, east) = match self {
            Self::Durham => (54.767, -1.573),
            Self::Edinburgh => (55.860, -3.199),
            Self::Cambridge => (52.211, 0.092),
            Self::Ral => (51.571, -1.315),
        };
        Place { north, east }
    }

    /// Returns the rate of the site's link to the others. The rate of Durham is published: four bonded links of 10
    /// Gbit/s. The others are derived from the highest observed rates: 9.2 Gbit/s from and to Edinburgh with either
    /// tool, 8 to 16 Gbit/s between Cambridge and Durham with Globus, up to 6.4 Gbit/s from and to RAL with Globus.
    pub(crate) fn link(self) -> Rate {
        let gigabits = match self {
            Self::Durham => 40,
            Self::Cambridge => 20,
            Self::Edinburgh | Self::Ral => 10,
        };
        Rate(gigabits * 1_000_000_000)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Site {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL
            .into_iter()
            .find(|site| site.name().eq_ignore_ascii_case(text));
        let Some(site) = known else {
            bail!(
                "no site {text}; there are {}",
                Self::ALL.map(Self::name).join(", ")
            );
        };
        Ok(site)
    }
}

/// A location, in degrees.
#[derive(Clone, Copy, Debug)]
struct Place {
    north: f64,
    east: f64,
}

impl Place {
    /// Returns the distance along a great circle (haversine formula).
    fn kilometres_to(self, other: Self) -> f64 {
        let half_sine = |degrees: f64| (degrees.to_radians() / 2.0).sin();
        let (north, east) = (
            half_sine(other.north - self.north),
            half_sine(other.east - self.east),
        );
        let cosines = self.north.to_radians().cos() * other.north.to_radians().cos();
        2.0 * EARTH_RADIUS_KM * (north * north + cosines * east * east).sqrt().asin()
    }
}

/// The assumptions that derive emulated paths from real ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumptions {
    /// Ratio of the length of a path's fiber to the great-circle distance, which accounts for the delay of equipment
    /// along the path.
    pub(crate) detour: f64,
    /// Ratio of an emulated rate to the real one.
    pub(crate) scale: f64,
}

/// The path between two sites.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stretch {
    pub(crate) sites: [Site; 2],
    pub(crate) kilometres: f64,
    #[serde(serialize_with = "as_milliseconds")]
    pub(crate) rtt_ms: RoundTrip,
    #[serde(serialize_with = "as_bits")]
    pub(crate) bits_per_second: Rate,
}

impl Stretch {
    /// Returns the path between `sites`, at a given rate or at the rate of the slower link.
    pub(crate) fn new(sites: [Site; 2], assumptions: Assumptions, told: Option<Rate>) -> Self {
        let [one, other] = sites;
        let kilometres = one.place().kilometres_to(other.place());
        let seconds = 2.0 * kilometres * assumptions.detour / FIBRE_KM_PER_SECOND;
        let rtt_ms = RoundTrip(Duration::from_secs_f64(seconds));
        let slower = one.link().0.min(other.link().0);
        let bits_per_second = told.unwrap_or_else(|| scaled(Rate(slower), assumptions.scale));
        Self {
            sites,
            kilometres,
            rtt_ms,
            bits_per_second,
        }
    }

    /// Returns the paths between all sites.
    pub(crate) fn all(assumptions: Assumptions, told: Option<Rate>) -> Vec<Self> {
        let pairs = Site::ALL.iter().enumerate().flat_map(|(number, &one)| {
            Site::ALL[number + 1..]
                .iter()
                .map(move |&other| [one, other])
        });
        pairs
            .map(|sites| Self::new(sites, assumptions, told))
            .collect()
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are far below 2^52 and above zero"
)]
fn scaled(rate: Rate, scale: f64) -> Rate {
    Rate(((rate.0 as f64 * scale).round() as u64).max(1))
}

fn as_milliseconds<S: serde::Serializer>(
    round_trip: &RoundTrip,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(round_trip.milliseconds())
}

fn as_bits<S: serde::Serializer>(rate: &Rate, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(rate.0)
}

const EARTH_RADIUS_KM: f64 = 6_371.0;
/// The speed of light in fiber, in kilometers per second: two thirds of that in vacuum.
const FIBRE_KM_PER_SECOND: f64 = 199_862.0;

#[cfg(test)]
mod tests {
    use super::*;

    const ASSUMPTIONS: Assumptions = Assumptions {
        detour: 2.0,
        scale: 0.2,
    };

    #[test]
    fn great_circles_are_as_long_as_maps_say() {
        let quarter = Place {
            north: 0.0,
            east: 0.0,
        }
        .kilometres_to(Place {
            north: 0.0,
            east: 90.0,
        });
        assert_eq!(format!("{quarter:.0}"), "10008");
        let between = |one: Site, other: Site| one.place().kilometres_to(other.place());
        assert!((155.0..165.0).contains(&between(Site::Durham, Site::Edinburgh)));
        assert!((480.0..500.0).contains(&between(Site::Edinburgh, Site::Ral)));
        assert!((115.0..125.0).contains(&between(Site::Ral, Site::Cambridge)));
    }

    #[test]
    fn a_round_trip_goes_there_and_back_by_the_detour() {
        let path = Stretch::new([Site::Durham, Site::Edinburgh], ASSUMPTIONS, None);
        let expected = path.kilometres * 4.0 / FIBRE_KM_PER_SECOND * 1e3;
        assert!((path.rtt_ms.milliseconds() - expected).abs() < 1e-3);
        let straight = Stretch::new(
            path.sites,
            Assumptions {
                detour: 1.0,
                ..ASSUMPTIONS
            },
            None,
        );
        assert!((path.rtt_ms.milliseconds() / straight.rtt_ms.milliseconds() - 2.0).abs() < 1e-3);
    }

    #[test]
    fn the_slower_link_is_the_bottleneck_unless_a_rate_is_told() {
        let rate = |sites, told| Stretch::new(sites, ASSUMPTIONS, told).bits_per_second;
        assert_eq!(
            rate([Site::Durham, Site::Cambridge], None),
            Rate(4_000_000_000)
        );
        assert_eq!(rate([Site::Ral, Site::Durham], None), Rate(2_000_000_000));
        assert_eq!(rate([Site::Ral, Site::Durham], Some(Rate(7))), Rate(7));
    }

    #[test]
    fn there_is_a_path_between_any_two_sites() {
        let paths = Stretch::all(ASSUMPTIONS, None);
        let ends: Vec<[Site; 2]> = paths.iter().map(|path| path.sites).collect();
        assert_eq!(ends.len(), 6);
        for (one, other) in Site::ALL
            .into_iter()
            .flat_map(|one| Site::ALL.map(|other| (one, other)))
        {
            let joined = ends.contains(&[one, other]) || ends.contains(&[other, one]);
            assert_eq!(joined, one != other, "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_site_is_typed_in_any_case() {
        for text in ["ral", "RAL", "Ral"] {
            assert_eq!(text.parse::<Site>().unwrap(), Site::Ral);
        }
        assert!("Oxford".parse::<Site>().is_err());
    }
}
