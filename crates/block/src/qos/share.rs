//! Weighted max-min sharing: nobody gets more than they ask for, and nobody could get more without
//! taking it from one who has less for their weight.

/// A lane's claim to a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// At least 1.
    pub weight: u32,
    /// The most it can use; `u64::MAX` for whatever it gets.
    pub demand: u64,
}

/// Shares `budget` among `claims`, the result in their order.
///
/// The sum is at most the budget, and less than it by at most one unit per claim when the demands
/// exceed it: shares are rounded down.
pub fn max_min(budget: u64, claims: &[Claim]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // By demand per weight: whoever is content first comes first.
    let scaled = |i: usize, j: usize| u128::from(claims[i].demand) * u128::from(claims[j].weight);
    order.sort_by(|&i, &j| scaled(i, j).cmp(&scaled(j, i)));
    let mut weight_left: u128 = claims.iter().map(|claim| u128::from(claim.weight)).sum();
    let mut left = u128::from(budget);
    let mut shares = vec![0; claims.len()];
    for index in order {
        let weight = u128::from(claims[index].weight);
        let fair = (left * weight).checked_div(weight_left).unwrap_or(0);
        let share = fair.min(u128::from(claims[index].demand));
        shares[index] = share as u64;
        left -= share;
        weight_left -= weight;
    }
    shares
}
