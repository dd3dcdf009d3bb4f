//! Noise as hosts have it, so that what vmeter concludes can be checked against what is true.
//!
//! `noise KIND SIZE [MORE]` makes all lengths of a run longer or shorter by one factor, whose
//! logarithm is drawn from the session's seed, the run's number and (for `build`) the machine's
//! label alone. Several noises multiply.
//!
//! | | of each run | |
//! |---|---|---|
//! | `normal 3%` | by itself | |
//! | `skewed 3%` | by itself, and one in twelve is 5 to 10 times SIZE slower | boots of a shared host |
//! | `ar1 3% 0.5` | much like the one before: lag-1 correlation | a host's changing load |
//! | `session 3%` | as all others of the session | another day |
//! | `build 1%` | as all others of the machine | layout of another binary |
//! | `drift 0.2%` | by so much more than the one before | heat, a cache that fills |
//! | `spell 20% 7` | as the others of seven in a row | slow spells |
//! | `steal 30%` | in bursts of 2 to 5, one run in ten; counted as stolen time | a neighbour |
//! | `rare 3% 1/20 x3` | by itself, and one in 20 takes 3 times as long | a retry, a timeout, a flush |

use super::number::{float, percent};
use super::random::uniform;
use super::scene::Scene;

/// One `noise` line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Noise {
    kind: Kind,
    size: f64,
    more: f64,
    /// Logarithm of what a rare run takes more.
    slow: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Skewed,
    Ar1,
    Session,
    Build,
    Drift,
    Spell,
    Steal,
    Rare,
}

/// Runs back that an autocorrelated one remembers; 0.9^60 is below 1 %.
const MEMORY: i64 = 60;
/// No run is longer or shorter by more than e to this.
const MOST: f64 = 3.0;

impl Noise {
    /// Reads `KIND SIZE [MORE]`, or `rare SIZE 1/N xTIMES`.
    ///
    /// # Errors
    /// In words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        if let ["rare", size, share, times] = words.clone().collect::<Vec<_>>()[..] {
            return Self::rare(size, share, times);
        }
        let (name, size) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (kind, wants_more) = match name {
            "normal" => (Kind::Normal, false),
            "skewed" => (Kind::Skewed, false),
            "ar1" => (Kind::Ar1, true),
            "session" => (Kind::Session, false),
            "build" => (Kind::Build, false),
            "drift" => (Kind::Drift, false),
            "spell" => (Kind::Spell, true),
            "steal" => (Kind::Steal, false),
            "rare" => {
                return Err(
                    "noise rare: expected SIZE, 1/N and xTIMES, as in rare 3% 1/20 x3".into()
                )
            }
            other => {
                return Err(format!(
                    "no such noise: {other:?}; expected normal, skewed, ar1, session, build, \
                     drift, spell, steal or rare"
                ))
            }
        };
        let size = percent(size)?;
        let more = match (wants_more, words.next()) {
            (false, None) => 0.0,
            (true, Some(number)) => float(number)?,
            _ => {
                return Err(format!(
                    "noise {name}: expected KIND SIZE; `ar1` also takes a correlation, and \
                        `spell` also takes a number of runs"
                ))
            }
        };
        let valid = match kind {
            Kind::Ar1 => more < 1.0,
            Kind::Spell => more >= 1.0,
            _ => true,
        };
        if !valid || words.next().is_some() {
            return Err(format!(
                "noise {name} {more}: expected one number: for `ar1` the correlation, below 1; \
                    for `spell` the number of runs in a spell, at least 1"
            ));
        }
        Ok(Noise { kind, size, more, slow: 0.0 })
    }

    /// `share` is `1/N` and `times` is `xTIMES`.
    fn rare(size: &str, share: &str, times: &str) -> Result<Self, String> {
        let number = |text: &str, prefix: &str| {
            let number = text.strip_prefix(prefix).map(float);
            number.unwrap_or_else(|| {
                Err(format!("noise rare: {text:?} does not begin with {prefix}"))
            })
        };
        let (runs, times) = (number(share, "1/")?, number(times, "x")?);
        if runs < 1.0 || times <= 0.0 {
            return Err(
                "the noise `rare` needs the values 1/N and xTIMES, with N at least 1 and TIMES above \
                 0"
                    .into()
            );
        }
        let size = percent(size)?;
        Ok(Noise { kind: Kind::Rare, size, more: 1.0 / runs, slow: times.ln() })
    }

    /// Logarithm of the factor of this run.
    pub fn log_factor(&self, scene: &Scene<'_>) -> f64 {
        let index = i64::from(scene.index);
        let draw = |stream: u64, at: i64| Draw::new(scene.seed, stream, at);
        let log = match self.kind {
            Kind::Normal => self.size * draw(1, index).normal(),
            Kind::Skewed => {
                let mut own = draw(2, index);
                let slow = own.uniform() < 1.0 / 12.0;
                let extra = if slow { self.size * (5.0 + 5.0 * own.uniform()) } else { 0.0 };
                self.size * own.normal() + extra
            }
            Kind::Ar1 => {
                let weight = (1.0 - self.more * self.more).sqrt();
                let of = |back: i64| {
                    self.more.powi(back as i32) * draw(3, index.saturating_sub(back)).normal()
                };
                self.size * weight * (0..MEMORY).map(of).sum::<f64>()
            }
            Kind::Session => self.size * draw(4, 0).normal(),
            Kind::Build => self.size * draw(5, label(scene.label)).normal(),
            Kind::Drift => self.size * index as f64,
            Kind::Spell => self.size * draw(6, index.div_euclid(self.more as i64)).normal(),
            Kind::Steal => self.stolen(scene),
            Kind::Rare => {
                let mut own = draw(9, index);
                let slow = if own.uniform() < self.more { self.slow } else { 0.0 };
                self.size * own.normal() + slow
            }
        };
        log.clamp(-MOST, MOST)
    }

    /// Of that, what other machines of the host took.
    pub fn stolen(&self, scene: &Scene<'_>) -> f64 {
        if self.kind != Kind::Steal {
            return 0.0;
        }
        let index = i64::from(scene.index);
        let burst = |back: i64| {
            let mut start = Draw::new(scene.seed, 7, index - back);
            let begins = start.uniform() < 1.0 / 35.0;
            begins && back < 2 + (start.uniform() * 4.0) as i64
        };
        let size = 0.5 + Draw::new(scene.seed, 8, index).uniform();
        if (0..5).any(burst) {
            self.size * size
        } else {
            0.0
        }
    }
}

/// A label as a number (FNV-1a).
fn label(text: &str) -> i64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step) as i64
}

/// Numbers that follow from a seed, a stream and a place in it.
struct Draw(u64);

impl Draw {
    fn new(seed: u64, stream: u64, at: i64) -> Self {
        let mut draw = Draw(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        draw.uniform();
        draw.0 ^= (at as u64).wrapping_mul(0xa076_1d64_78bd_642f);
        draw.uniform();
        draw
    }

    fn uniform(&mut self) -> f64 {
        uniform(&mut self.0)
    }

    /// Standard normal (Box, Muller 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::WatchLevel;
    use vmeter_model::MachineSpec;

    fn logs(text: &str, seed: u64, label: &str, runs: u32) -> Vec<f64> {
        let noise = Noise::parse(text).expect("noise");
        let spec = MachineSpec::default();
        let of = |index| {
            let watch = WatchLevel::None;
            noise.log_factor(&Scene { spec: &spec, label, index, warmup: false, watch, seed })
        };
        (0..runs).map(of).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn sd(values: &[f64]) -> f64 {
        let centre = mean(values);
        let squares: Vec<f64> = values.iter().map(|x| (x - centre).powi(2)).collect();
        mean(&squares).sqrt()
    }

    fn lag_1(values: &[f64]) -> f64 {
        let centre = mean(values);
        let products: Vec<f64> =
            values.windows(2).map(|w| (w[0] - centre) * (w[1] - centre)).collect();
        mean(&products) / sd(values).powi(2)
    }

    #[test]
    fn each_is_what_it_says() {
        let n = 20_000;
        let normal = logs("normal 3%", 1, "a", n);
        assert!((sd(&normal) - 0.03).abs() < 0.001 && lag_1(&normal).abs() < 0.03);
        let like = logs("ar1 3% 0.5", 1, "a", n);
        assert!((sd(&like) - 0.03).abs() < 0.001 && (lag_1(&like) - 0.5).abs() < 0.03);
        let skewed = logs("skewed 3%", 1, "a", n);
        let slow = skewed.iter().filter(|x| **x > 0.12).count() as f64 / f64::from(n);
        assert!((0.06..0.11).contains(&slow), "{slow}");
        let rare = logs("rare 3% 1/20 x3", 1, "a", n);
        let slow: Vec<f64> = rare.iter().copied().filter(|x| *x > 0.5).collect();
        let share = slow.len() as f64 / f64::from(n);
        assert!(
            (0.045..0.055).contains(&share) && (mean(&slow).exp() - 3.0).abs() < 0.02,
            "{share}"
        );
        assert_eq!(logs("drift 0.2%", 1, "a", 11)[10], 0.02);
        let spell = logs("spell 20% 7", 1, "a", 14);
        assert!(spell[0] == spell[6] && spell[6] != spell[7]);
        let bursts = logs("steal 30%", 1, "a", n);
        let share = bursts.iter().filter(|x| **x > 0.0).count() as f64 / f64::from(n);
        assert!((0.05..0.15).contains(&share) && lag_1(&bursts) > 0.3, "{share}");
    }

    #[test]
    fn sessions_and_builds_have_their_own() {
        let sessions: Vec<f64> = (0..4000).map(|s| logs("session 3%", s, "a", 2)[1]).collect();
        assert!((sd(&sessions) - 0.03).abs() < 0.002, "{}", sd(&sessions));
        assert_eq!(logs("session 3%", 5, "a", 2), logs("session 3%", 5, "b", 2));
        let builds: Vec<f64> =
            (0..4000).map(|b| logs("build 1%", 7, &b.to_string(), 1)[0]).collect();
        assert!((sd(&builds) - 0.01).abs() < 0.001, "{}", sd(&builds));
    }

    #[test]
    fn what_is_no_noise_is_refused() {
        for wrong in [
            "loud 3%",
            "normal",
            "normal 3",
            "ar1 3%",
            "ar1 3% 1.5",
            "spell 3% 0",
            "session 3% 4",
            "rare 3%",
            "rare 3% 20 x3",
            "rare 3% 1/0 x3",
            "rare 3% 1/20 x3 4",
        ] {
            assert!(Noise::parse(wrong).is_err(), "{wrong}");
        }
    }
}
