//! How a value develops from instance to instance, in bounded memory.

/// Most points.
const MAX_POINTS: usize = 256;

/// Averages over equal runs of instances; the runs double when there are too many.
#[derive(Debug, Clone, Default)]
pub struct Series {
    points: Vec<Point>,
    /// Instances a point, as a power of two.
    shift: u32,
}

/// Sums over a run of instances.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// Instances.
    pub count: u64,
    /// Ticks.
    pub ticks: u64,
    /// Calls.
    pub calls: u64,
}

impl Series {
    /// Takes the next instance.
    pub fn add(&mut self, ticks: u64, calls: u64) {
        let full = 1_u64 << self.shift;
        if self.points.last().is_none_or(|last| last.count >= full) {
            if self.points.len() == MAX_POINTS {
                self.halve();
            }
            self.points.push(Point::default());
        }
        if let Some(last) = self.points.last_mut() {
            last.count += 1;
            last.ticks = last.ticks.saturating_add(ticks);
            last.calls += calls;
        }
    }

    fn halve(&mut self) {
        self.points = self
            .points
            .chunks(2)
            .map(|pair| {
                pair.iter().fold(Point::default(), |sum, point| Point {
                    count: sum.count + point.count,
                    ticks: sum.ticks.saturating_add(point.ticks),
                    calls: sum.calls + point.calls,
                })
            })
            .collect();
        self.shift += 1;
    }

    /// Sum of a value.
    pub fn sum(&self, value: impl Fn(&Point) -> u64) -> u64 {
        self.points.iter().fold(0, |sum, point| value(point).saturating_add(sum))
    }

    /// Instances in all.
    pub fn instances(&self) -> u64 {
        self.points.iter().map(|point| point.count).sum()
    }

    /// Means by number of the instance: (number, value).
    pub fn means(&self, value: impl Fn(&Point) -> u64) -> Vec<(f64, f64)> {
        let mut before = 0.0;
        let mut all = Vec::with_capacity(self.points.len());
        for point in self.points.iter().filter(|point| point.count > 0) {
            let count = point.count as f64;
            all.push((before + (count + 1.0) / 2.0, value(point) as f64 / count));
            before += count;
        }
        all
    }
}
