"""Scores of visual tokens from the papers, as pure functions of tensors; selection is up to the pruners.

Apart from its result no function allocates more than a block of rows in float32: no N x N, no N x n_text matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F

#: Elements of a block of rows converted to float32 at a time: 32 MiB.
_BLOCK = 1 << 23


def text_similarity(states: torch.Tensor, visual: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Return the similarity of each visual token to the text (ParallelVLM Eq. 2, summed over the text).

    ``score_i = sum_j cos(V_i, X_j)``, computed as ``V_i / |V_i| . sum_j X_j / |X_j|``: one vector for the whole text,
    so O(N d) and no N x n matrix. A zero vector has cosine 0 with everything.

    Args:
        states: (L, d) of one layer, any float dtype.
        visual: (N,) rows of the visual tokens.
        text: (n,) rows of the text tokens.

    Returns:
        (N,) float32 within [-n, n].
    """
    visual, text = visual.to(states.device), text.to(states.device)
    direction = F.normalize(states[text].float(), dim=-1).sum(0)
    scores = torch.empty(len(visual), dtype=torch.float32, device=states.device)
    for part in _blocks(len(visual), states.shape[1]):
        scores[part] = F.normalize(states[visual[part]].float(), dim=-1) @ direction
    return scores


def similarity_variation(
    deep: torch.Tensor, shallow: torch.Tensor, visual: torch.Tensor, text: torch.Tensor
) -> torch.Tensor:
    """Return the gain in similarity to the text between two layers (ParallelVLM Eq. 3).

    ``sum_j sum_l (S_ij^l - S_ij^(l-1))`` over l = 1 ... L telescopes to ``sum_j (S_ij^L - S_ij^0)``.

    Args:
        deep, shallow: (L, d) states at layer L and at layer 0, the input embeddings of the first block.
        visual: (N,) rows of the visual tokens.
        text: (n,) rows of the text tokens.

    Returns:
        (N,) float32 within [-2n, 2n].
    """
    after = text_similarity(deep, visual, text)
    return after - text_similarity(shallow, visual, text).to(after.device)


def temporal_novelty(features: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Return the dissimilarity of each token to the same cell of the adjacent frames (HIPPO Eq. 3-4).

    ``1 - mean of cos(v_j^f, v_j^f')`` over existing f' in {f-1, f+1}. **D**: without a neighbour, as in a video of one
    frame, the mean is 0.

    Args:
        features: (N, d), any float dtype.
        grid: (frames, rows, columns) indices of tokens, -1 for empty cells.

    Returns:
        (N,) float32 within [0, 2]; 0 for tokens outside the grid.
    """
    places = grid.flatten(1)
    total = torch.zeros(places.shape, dtype=torch.float32, device=features.device)
    count = torch.zeros_like(total)
    for before in range(len(places) - 1):
        pair = slice(before, before + 2)
        alike, both = _cosine(features, places[before], places[before + 1])
        total[pair] += alike
        count[pair] += both
    there = places >= 0
    scores = torch.zeros(len(features), dtype=torch.float32, device=features.device)
    scores[places[there]] = (1 - total / count.clamp(min=1))[there]
    return scores


def crop_variance(features: torch.Tensor, grid: torch.Tensor, crop: int = 5) -> torch.Tensor:
    """Return the variance of each token's cosines within its crop (HIPPO Eq. 5-6).

    Each frame is cut into crops of ``crop`` x ``crop`` tokens from its upper left corner; those at the right and lower
    edge are smaller. With the M unit vectors E of a crop, ``S = E E^T``. The score of token j is the variance of row j
    of S, ``1/M sum_k (S_jk - mu_j)^2``, including its cosine 1 with itself.

    Args:
        features: (N, d), any float dtype.
        grid: (frames, rows, columns) indices of tokens, -1 for empty cells.
        crop: tokens per side.

    Returns:
        (N,) float32 within [0, 1]; 0 for tokens outside the grid.
    """
    scores = torch.zeros(len(features), dtype=torch.float32, device=features.device)
    frames, rows, columns = grid.shape
    for top in range(0, rows, crop):
        for left in range(0, columns, crop):
            places = grid[:, top : top + crop, left : left + crop].reshape(frames, -1)
            for part in _blocks(frames, places.shape[1] * features.shape[1]):
                tokens = places[part]
                there = tokens >= 0
                unit = F.normalize(features[tokens.clamp(min=0)].float(), dim=-1)
                alike, weight = unit @ unit.transpose(1, 2), there[:, None].float()
                size = weight.sum(-1).clamp(min=1)
                mean = (alike * weight).sum(-1) / size
                variance = ((alike - mean[..., None]).square() * weight).sum(-1) / size
                scores[tokens[there]] = variance[there]
    return scores


def frame_normalised(scores: torch.Tensor, frame: torch.Tensor, floor: float = 0.0) -> torch.Tensor:
    """Return standard scores within each frame, ``(s - mu_f) / sigma_f`` (HIPPO, before Eq. 7).

    **D**: sigma_f divides by the number of tokens, as Eq. 6 does. Zero variance gives 0; a deviation of at most
    ``floor``, or a millionth of the frame's largest score, counts as zero.

    Args:
        scores: (n,) any float dtype.
        frame: (n,) frame of each token, from 0.
        floor: the deviation that rounding alone may cause, in the unit of ``scores``.

    Returns:
        (n,) float32.
    """
    if not len(scores):
        return scores.float()
    values = scores.double()
    frames = int(frame.max()) + 1
    size = torch.bincount(frame, minlength=frames).clamp(min=1)

    def mean(of: torch.Tensor) -> torch.Tensor:
        return torch.zeros(frames, dtype=of.dtype, device=of.device).index_add(0, frame, of) / size

    centred = values - mean(values)[frame]
    deviation = mean(centred.square()).sqrt()
    largest = torch.zeros_like(deviation).scatter_reduce(0, frame, values.abs(), "amax")
    flat = deviation <= (1e-6 * largest).clamp(min=floor)
    return (centred / deviation.masked_fill(flat, 1.0)[frame]).masked_fill(flat[frame], 0.0).float()


def head_count(attention: torch.Tensor, lam_r: float) -> int:
    """Return the smallest number of tokens that hold a share ``lam_r`` of all attention (SpecVLM Eq. 6).

    ``c = min {c' : sum of the c' largest >= lam_r * sum of all}``; 0 for a share of nothing.

    Args:
        attention: (N,) non-negative.
        lam_r: share within [0, 1].
    """
    reached = attention.double().sort(descending=True).values.cumsum(0)
    reached = torch.cat([reached.new_zeros(1), reached])
    return int(torch.searchsorted(reached, lam_r * reached[-1:], side="left")[0])


def frame_dissimilarity(features: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Return the dissimilarity of each frame to the one before (FastVID's transitions, by which SpecVLM 4.4 ranks).

    ``1 - cos(g_f, g_(f-1))`` with g_f the mean feature of frame f. **D**: the first frame always opens a segment in
    FastVID, so it gets the maximum, 2.

    Args:
        features: (N, d), any float dtype.
        grid: (frames, rows, columns) indices of tokens, -1 for empty cells.

    Returns:
        (frames,) float32 within [0, 2].
    """
    scores = torch.full((len(grid),), 2.0, dtype=torch.float32, device=features.device)
    before: torch.Tensor | None = None
    for number, places in enumerate(grid.flatten(1)):
        total = features[places[places >= 0]].float().sum(0)  # the direction of the mean is that of the sum
        if before is not None:
            scores[number] = 1 - F.cosine_similarity(total, before, dim=0)
        before = total
    return scores


def merge_similarity(features: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the similarities that DyCoke's temporal merging compares, in groups of four frames (SpecVLM 4.4).

    In a group of frames 0 to 3, tokens of frames 1 and 2 are compared with the same cell of frame 0, those of frame 3
    with frame 2, so three quarters can be merged. **D**: for smaller budgets the first frames of the groups are grouped
    by four again, and so on; ``level`` is the round in which a token can be merged.

    Args:
        features: (N, d), any float dtype.
        grid: (frames, rows, columns) indices of tokens, -1 for empty cells.

    Returns:
        (N,) float32 cosines, -1 without a token to merge with, and (N,) levels from 0; frame 0 and tokens outside the
        grid have the highest.
    """
    places = grid.flatten(1)
    alike = torch.full((len(features),), -1.0, dtype=torch.float32, device=features.device)
    level = torch.full((len(features),), len(grid) + 1, dtype=torch.long, device=features.device)
    for number in range(1, len(places)):
        round_, stride = 0, 1
        while number % (4 * stride) == 0:
            round_, stride = round_ + 1, 4 * stride
        earlier = number - (2 if number // stride % 4 == 2 else 1) * stride
        there = places[number] >= 0
        cosine, both = _cosine(features, places[number], places[earlier])
        alike[places[number][there]] = torch.where(both, cosine, -1.0)[there]
        level[places[number][there]] = round_
    return alike, level


def _cosine(features: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (p,) float32 cosines of p token pairs, 0 if either is missing (-1), and the (p,) mask of full pairs."""
    both = (one >= 0) & (other >= 0)
    cosine = torch.zeros(len(one), dtype=torch.float32, device=features.device)
    cosine[both] = F.cosine_similarity(features[one[both]].float(), features[other[both]].float(), dim=-1)
    return cosine, both


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of ``rows`` rows of ``width`` elements, none larger than a block."""
    step = max(1, _BLOCK // max(1, width))
    return (slice(start, start + step) for start in range(0, rows, step))
