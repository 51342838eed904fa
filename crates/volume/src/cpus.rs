//! CPU lists as people and the kernel write them: `0-3,6`.

use std::fmt;
use std::str::FromStr;

/// Largest CPU number accepted: `CPU_SETSIZE` of libc.
const CPU_MAX: usize = 1023;

/// A set of CPUs, ascending, not empty.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// The CPUs, ascending; `None` when there are none.
    pub fn new(cpus: impl IntoIterator<Item = usize>) -> Option<Self> {
        let mut cpus: Vec<usize> = cpus.into_iter().filter(|&cpu| cpu <= CPU_MAX).collect();
        cpus.sort_unstable();
        cpus.dedup();
        (!cpus.is_empty()).then_some(CpuList(cpus))
    }

    /// The CPU numbers, ascending.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Where the service's workers go: half of the set, at least one CPU and at
    /// most `count_max`. Pools that share a set
    /// and are given successive `turn`s start on different CPUs, and a pool's workers are apart
    /// from each other, so that there are CPUs for the clients in between.
    pub fn worker_cpus(&self, turn: usize, count_max: usize) -> Vec<u32> {
        let count = (self.0.len() / 2).clamp(1, count_max);
        (0..count).map(|index| self.0[(turn + 2 * index) % self.0.len()] as u32).collect()
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a list of CPUs: write it as 0-3,6");
        let number = |part: &str| match part.parse::<usize>() {
            Ok(cpu) if cpu <= CPU_MAX => Ok(cpu),
            _ => Err(bad()),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        CpuList::new(cpus).ok_or_else(bad)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some(&first) = rest.first() {
            let run =
                rest.iter().zip(first..).take_while(|(cpu, expected)| *cpu == expected).count();
            match run {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", first + run - 1)?,
            }
            comma = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_printed() {
        for (text, cpus, printed) in [
            ("0", vec![0], "0"),
            ("3,0-1", vec![0, 1, 3], "0-1,3"),
            ("2,2,1", vec![1, 2], "1-2"),
            ("1023", vec![1023], "1023"),
        ] {
            let list: CpuList = text.parse().expect(text);
            assert_eq!(list.as_slice(), cpus, "{text}");
            assert_eq!(list.to_string(), printed);
        }
        for text in ["", ",", "a", "1-", "3-1", "-1", "0,,1", "1024", "0-99999999999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    #[test]
    fn half_of_the_cpus_work_and_pools_take_turns() {
        for (text, turn, cpus) in [
            ("3", 7, vec![3]),
            ("0-1", 0, vec![0]),
            ("0-1", 1, vec![1]),
            ("0-3", 0, vec![0, 2]),
            ("0-3", 5, vec![1, 3]),
            ("0-4", 1, vec![1, 3]),
            ("0-99", 99, vec![99, 1, 3, 5, 7, 9, 11, 13]),
        ] {
            assert_eq!(text.parse::<CpuList>().expect(text).worker_cpus(turn, 8), cpus, "{text}");
        }
    }
}
