from matplotlib.figure import Figure

from secureafl.lab.reports.sweep_plots import shared_legend


def test_a_legend_of_long_names_stays_within_the_figure() -> None:
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for steps in range(8):
        axes.plot([0, 1], label=f"SecureAFL, local_steps={steps}00")
    shared_legend(figure, [axes])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
