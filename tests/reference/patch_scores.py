"""The score of patches that needs no training, one image and one patch at a time (docs/method.md)."""

import heapq


def saliency(image, grid, size, stride):
    """Scores of all patches of one image (3, H, W): Dijkstra's shortest ways over the grid, from the border on."""
    rows, columns = grid
    places = [(row, column) for row in range(rows) for column in range(columns)]
    colours = {}
    for row, column in places:
        top, left = row * stride[0], column * stride[1]
        colours[row, column] = image[:, top : top + size[0], left : left + size[1]].mean(dim=(1, 2))
    border = [
        (row, column)
        for row, column in places
        if row in (0, rows - 1) or column in (0, columns - 1)
    ]
    nearest = {
        place: sorted((colours[place] - colours[other]).norm().item() for other in border)[:3][-1]
        for place in places
    }
    queue, way = sorted((nearest[place], place) for place in border), {}
    while queue:
        cost, (row, column) = heapq.heappop(queue)
        if (row, column) in way:
            continue
        way[row, column] = cost
        for other in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if other in colours:
                heapq.heappush(
                    queue, (cost + (colours[row, column] - colours[other]).norm().item(), other)
                )
    return [nearest[place] + way[place] for place in places]
